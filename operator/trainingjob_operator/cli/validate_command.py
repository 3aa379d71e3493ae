"""`trainingjob validate`: the checks and messages of the webhook, without a cluster."""

from collections.abc import Iterable, Sequence

from trainingjob_api.problem import Problem, summarise
from trainingjob_api.spec.job import API_VERSION, KIND
from trainingjob_operator.cli.documents import Document, read_documents
from trainingjob_operator.cli.errors import EXIT_NEGATIVE, EXIT_NO_RESULT, CommandError, UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.core.catalog import BUILTIN, Catalog
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.validate import validate_manifest


def validate_files(files: Sequence[str], catalog: Catalog) -> int:
    """Print the result for every TrainingJob of the files; return the highest exit code.

    An unreadable file does not prevent the checks of the others.

    Raises:
        UsageError: all files are readable, but none holds a TrainingJob.
    """
    documents: list[Document] = []
    code = 0
    for file in files:
        try:
            documents += read_documents([file])
        except UsageError as error:
            echo(f"Error: {error}", err=True)
            code = error.code
    if not code and not any(document.is_job for document in documents):
        descriptions = "".join(f"\n  {document.location} is {document.describe()}" for document in documents)
        raise UsageError(f"there is no TrainingJob in {', '.join(files)}.{descriptions}")
    return max([code, *(_report_document(document, catalog) for document in documents)])


def require_valid(document: Document, catalog: Catalog = BUILTIN) -> tuple[Plan, tuple[Problem, ...]]:
    """Return the plan of a valid TrainingJob, and its warnings.

    Raises:
        CommandError: it has problems; the text lists all of them.
    """
    checked = validate_manifest(document.content, catalog)
    if checked.plan is None:
        raise CommandError(summarise(document.name, checked.problems))
    return checked.plan, tuple(checked.warnings)


def require_trainer_job(
    document: Document, command: str, catalog: Catalog = BUILTIN
) -> tuple[Plan, tuple[Problem, ...]]:
    """Return the plan of a valid TrainingJob that the built-in trainer trains, and its warnings.

    Raises:
        CommandError: it has problems, or it runs a program, of which a command that reads the model knows nothing.
    """
    plan, warnings = require_valid(document, catalog)
    if plan.spec.command_program:
        raise CommandError(
            f"{document.name}: `trainingjob {command}` must know the model, but only the job's `spec.program` does."
        )
    return plan, warnings


def warning_lines(warnings: Iterable[Problem]) -> list[str]:
    """Return a job's warnings, one per line."""
    return [f"Warning  {warning}" for warning in warnings]


def _report_document(document: Document, catalog: Catalog) -> int:
    """Print the result for one document; return its exit code."""
    if not document.is_job:
        hint = f" Was `kind: {KIND}` of `apiVersion: {API_VERSION}` meant?" if document.is_misspelt else ""
        echo(f"{document.location} is {document.describe()}: not checked.{hint}")
        return EXIT_NO_RESULT if document.is_misspelt else 0
    checked = validate_manifest(document.content, catalog)
    if checked.plan is None:
        echo(f"{document.location}: {summarise(document.name, checked.problems)}")
    else:
        echo(f'{document.location}: TrainingJob "{document.name}" is valid: {_sizes(checked.plan)}.')
    for line in warning_lines(checked.warnings):
        echo(line)
    return EXIT_NEGATIVE if checked.plan is None else 0


def _sizes(plan: Plan) -> str:
    allowed = plan.allowed_sizes
    if len(allowed) == 1:
        return f"trains on {pluralize(allowed[0], 'slice')}"
    return f"trains on {', '.join(str(size) for size in allowed[:-1])} or {pluralize(allowed[-1], 'slice')}"
