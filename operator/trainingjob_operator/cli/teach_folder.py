"""`trainingjob teach`: a teacher's probabilities for the tokens of a job, so that jobs distill it without running it.

The trainer runs the teacher on the devices of this machine, in a separate process.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainingjob_api.prepare_exchange import TeachAnswer, TeachRequest
from trainingjob_api.spec.distillation import MAX_PER_TOKEN
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import count_stored_bytes
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.errors import NoResultError, UsageError
from trainingjob_operator.cli.prepare_folder import SECTIONS, PrepareOptions, make_request
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.trainer_child import TrainerChild, require_trainer
from trainingjob_operator.cli.validate_command import require_trainer_job, warning_lines
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.units import format_size, pluralize

PROGRAM = ("-P", "-m", "trainingjob_trainer.teach")
"""Python arguments that run the trainer's part."""


class TeachOptions(NamedTuple):
    """The options of the command."""

    output: str
    """A folder of this machine, or a folder of a bucket."""
    per_token: int
    share: str = "1/1"
    """Which of how many processes this is, such as `2/4`."""
    volumes: Sequence[str] = ()
    """Each is `NAME=FOLDER`."""


def teach_file(file: str, options: TeachOptions, catalog: Catalog) -> None:
    """Store the probabilities of the teacher of a file's TrainingJob, and print how many.

    Raises:
        CommandError: the job is invalid, or the text, the teacher or the folder cannot be used.
    """
    require_trainer("teach")
    plan, warnings = require_trainer_job(read_single_job(file), "teach", catalog)
    for line in warning_lines(warnings):
        echo(line, err=True)
    request = make_teach_request(plan.spec, options)
    num_sequences = _teach(request)
    num_bytes = count_stored_bytes(request.per_token, request.spec.model.vocab_size)
    size = format_size(num_sequences * request.spec.training.sequence_length * num_bytes)
    sequences = pluralize(num_sequences, "sequence")
    echo(f"{sequences} · {request.per_token} probabilities a token · {num_bytes:,} B a token · {size}")
    echo(f"stored in {request.output}, for `spec.objective.distill.probabilities.uri`", err=True)


def make_teach_request(spec: TrainingJobSpec, options: TeachOptions) -> TeachRequest:
    """Return the request for the trainer, with the paths of this machine.

    Raises:
        CommandError: the job has no teacher, or an option is invalid.
    """
    if spec.objective is None or spec.objective.teacher is None:
        raise UsageError(
            "spec.objective.distill.teacher: must be set. `teach` runs this model. Write `objective.type: distill` "
            "with the `teacher`."
        )
    maximum = min(MAX_PER_TOKEN, spec.model.vocab_size)
    if not 1 <= options.per_token <= maximum:
        raise UsageError(f"--per-token: {options.per_token} must be from 1 to {maximum}.")
    number, count = _parse_share(options.share)
    prepared = make_request(spec, PrepareOptions(options.output, options.volumes), (*SECTIONS, "objective"))
    return TeachRequest(
        spec=prepared.spec,
        output=prepared.output,
        paths=prepared.paths,
        per_token=options.per_token,
        rank=number - 1,
        count=count,
    )


def _parse_share(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isascii() and number.isdigit() and count.isascii() and count.isdigit()):
        raise UsageError(f"--share: {text} must be a number and the number of processes, such as 2/4.")
    if not 1 <= int(number) <= int(count):
        raise UsageError(f"--share: {text} must be from 1/{count} to {count}/{count}.")
    return int(number), int(count)


def _teach(request: TeachRequest) -> int:
    """Return the number of stored sequences, and show the progress on a terminal.

    Raises:
        CommandError: the trainer reports an error, or its answer cannot be read.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = SafeConsole(stderr=True)
    with (
        TrainerChild(PROGRAM, "trainer") as trainer,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("tokenizing", total=None)
        for line in trainer.answer(request.model_dump_json()):
            answer = trainer.parse(TeachAnswer, line)
            if answer.error:
                raise NoResultError(answer.error)
            if answer.is_complete:
                return answer.done_sequences
            if answer.total_sequences:
                bar.update(
                    task,
                    description="sequences",
                    completed=answer.done_sequences,
                    total=answer.total_sequences,
                )
    raise NoResultError("the trainer ended without an answer.")
