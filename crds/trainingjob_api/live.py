"""Live fields of the spec: those that may change while the job trains, except for those that only the operator reads.

A trainer holds these values constant, too. They change from one world to the next, which all hosts enter together. So a
world contains the values that it was formed with, and the status stores them.
"""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.spec.checkpoint import Keep, KeepBest, Save
from trainingjob_api.spec.job import TrainingJobSpec

Every = Annotated[int, Field(ge=1, le=100_000_000)]


class LiveFields(Strict):
    """The live values of a spec."""

    steps: Every = Field(description="The optimizer step at which the job succeeds.")
    save: Save = Field(description="When a checkpoint is written.")
    keep: Keep = Field(description="Which checkpoints stay.")
    evaluate: dict[ShortName, Every] = Field(
        default={}, max_length=8, description="Steps between two evaluations on each held-out text."
    )


def live_fields(spec: TrainingJobSpec) -> LiveFields:
    """Return the live values of a spec."""
    return LiveFields(
        steps=spec.training.steps,
        save=spec.checkpoint.save,
        keep=spec.checkpoint.keep,
        evaluate={one.name: one.every_steps for one in spec.evaluation},
    )


def with_live_fields(spec: TrainingJobSpec, live: LiveFields) -> TrainingJobSpec:
    """Return a spec with the live values replaced."""
    evaluation = tuple(
        one.model_copy(update={"every_steps": live.evaluate.get(one.name, one.every_steps)}) for one in spec.evaluation
    )
    return spec.model_copy(
        update={
            "training": spec.training.model_copy(update={"steps": live.steps}),
            "checkpoint": spec.checkpoint.model_copy(update={"save": live.save, "keep": live.keep}),
            "evaluation": evaluation,
        }
    )


def describe_changes(before: LiveFields, after: LiveFields) -> list[str]:
    """Return the differences as text: `training.steps is 500, was 300`."""
    values: list[tuple[str, int | str | None, int | str | None]] = [
        ("training.steps", before.steps, after.steps),
        ("checkpoint.save.everySteps", before.save.every_steps, after.save.every_steps),
        ("checkpoint.save.every", before.save.every, after.save.every),
        ("checkpoint.keep.last", before.keep.last, after.keep.last),
        ("checkpoint.keep.everySteps", before.keep.every_steps, after.keep.every_steps),
        ("checkpoint.keep.best", _describe(before.keep.best), _describe(after.keep.best)),
        *(
            (f"evaluation[{name}].everySteps", before.evaluate.get(name), steps)
            for name, steps in after.evaluate.items()
        ),
    ]
    return [f"spec.{path} is {_show(new)}, was {_show(old)}" for path, old, new in values if old != new]


def _describe(best: KeepBest | None) -> str | None:
    return f"{{evaluation: {best.evaluation}, count: {best.count}}}" if best else None


def _show(value: int | str | None) -> str:
    return "unset" if value is None else f"{value:,}" if isinstance(value, int) else value
