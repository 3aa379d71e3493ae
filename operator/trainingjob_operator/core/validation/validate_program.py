"""Rules about jobs with `program`: each field must be one that the program, or the built-in trainer, honours."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pydantic.alias_generators import to_camel

from trainingjob_api.line_pattern import find_pattern_error
from trainingjob_api.problem import Problem
from trainingjob_api.spec.checkpoint import Checkpoint
from trainingjob_api.spec.elastic import Elastic
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import DISTILL, DPO
from trainingjob_api.spec.program import PLACEHOLDER, PLACEHOLDERS
from trainingjob_api.spec.replaced_sections import REPLACED_SECTIONS, TRAINER_SECTIONS
from trainingjob_operator.core.names import nearest_names
from trainingjob_operator.core.planner.problem_messages import must_be_direct
from trainingjob_operator.core.validation.rule import Rule

MUST_BE_ABSENT = (
    "must not be set with `spec.program.command`: only the built-in trainer honours it. Remove it, or `spec.program`."
)
ONE_KIND = "must have exactly one of `command` and `entrypoint`"
ELASTIC_FIELDS = ("hot_standby", "fault_injection")


def check_kind(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`program` must have either `command` or `entrypoint`."""
    program = spec.program
    if program is None or (program.command is None) != (program.entrypoint is None):
        return
    if program.command is None:
        example = 'Write for example `command: ["python", "train.py"]` or `entrypoint: losses.focal:customize`.'
        yield Problem("spec.program", None, f"{ONE_KIND}. {example}")
    else:
        yield Problem("spec.program", None, f"{ONE_KIND}, but has both. Remove one of the two.")


def check_fields_of_command(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The built-in trainer counts and reports its own steps, and only a function receives `config`."""
    program = spec.program
    if program is None:
        return
    if program.entrypoint is None:
        if program.config:
            message = "must be set with `spec.program.entrypoint` only: a command has arguments. Remove it."
            yield Problem("spec.program.config", program.config, message)
        return
    if program.steps is not None:
        message = "must not be set with `spec.program.entrypoint`. Remove it, and set `spec.training.steps`."
        yield Problem("spec.program.steps", program.steps, message)
    if program.progress is not None:
        message = "must not be set with `spec.program.entrypoint`: the built-in trainer reports its steps. Remove it."
        yield Problem("spec.program.progress", _to_json(program.progress), message)


def check_replaced_loss(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A function may replace the loss of tokens, but not that of pairs or of a teacher."""
    kind = spec.objective.type if spec.objective else None
    if spec.program and spec.program.entrypoint and kind in (DPO, DISTILL):
        message = f"{kind} must not be set with `spec.program.entrypoint`, which may replace the loss of tokens only."
        yield Problem("spec.objective.type", kind, message, ("nextToken", "sft"))


def check_placeholders(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Placeholders in `program.command` must have a value in a world."""
    for number, argument in enumerate((spec.program and spec.program.command) or ()):
        for name in dict.fromkeys(PLACEHOLDER.findall(argument)):
            if name not in PLACEHOLDERS:
                nearest = tuple(
                    argument.replace(f"{{{name}}}", f"{{{placeholder}}}")
                    for placeholder in nearest_names(name, PLACEHOLDERS)
                )
                message = (
                    f"{{{name}}} must be one of {', '.join(f'{{{placeholder}}}' for placeholder in PLACEHOLDERS)}."
                )
                yield Problem(f"spec.program.command[{number}]", argument, message, nearest)


def check_pattern(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`program.progress.pattern` must name a step, and be a regular expression that takes little time."""
    progress = spec.program.progress if spec.program else None
    if progress and (error := find_pattern_error(progress.pattern)):
        yield Problem("spec.program.progress.pattern", progress.pattern, error)


def check_working_directory(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`program.workingDirectory` must be a direct path."""
    folder = spec.program.working_directory if spec.program else None
    if folder and ".." in PurePosixPath(folder).parts:
        yield Problem("spec.program.workingDirectory", folder, must_be_direct(folder))


def _must_be_absent(*path: str, default: object) -> Rule:
    """Return the rule that a field has its default, which the API server may have written."""

    def check(spec: TrainingJobSpec) -> Iterator[Problem]:
        """With `program.command`, a field that only the built-in trainer honours must not be set."""
        value: object = spec
        for name in path:
            value = getattr(value, name)
        if spec.command_program and spec.command_program.command and value != default:
            yield Problem(f"spec.{field}", _to_json(value), MUST_BE_ABSENT)

    field = ".".join(map(to_camel, path))
    return Rule(("program", field), check)


def _to_json(value: Any) -> object:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value


RULES = (
    Rule(("program",), check_kind),
    Rule(("program",), check_fields_of_command),
    Rule(("program", "objective"), check_replaced_loss),
    Rule(("program",), check_placeholders),
    Rule(("program",), check_working_directory),
    Rule(("program",), check_pattern),
    *(
        _must_be_absent(name, default=REPLACED_SECTIONS.get(name, TrainingJobSpec.model_fields[name].default))
        for name in TRAINER_SECTIONS
    ),
    *(
        _must_be_absent("checkpoint", name, default=field.default)
        for name, field in Checkpoint.model_fields.items()
        if name != "uri"
    ),
    *(_must_be_absent("elastic", name, default=Elastic.model_fields[name].default) for name in ELASTIC_FIELDS),
)
