"""Live fields of the spec that trainers read: those declared as `Live(in_world=True)`.

A trainer holds these values constant, too. They change from one world to the next, which all hosts enter together. So a
world contains the values that it was formed with, and the status stores them.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue
from pydantic.alias_generators import to_camel

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.spec.checkpoint import Keep, Save
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.training import MAX_EPOCHS, MAX_STEP, StopAtLoss

Every = Annotated[int, Field(ge=1, le=100_000_000)]


def _read_former_keep(value: object) -> object:
    """Return the retention of a status or world that an operator before 0.1 wrote, with the names of today."""
    match value:
        case {"everySteps": every, **others}:
            return others | ({"stages": [{"every": every}]} if every else {})
    return value


_FORMER_KEEP: dict[str, JsonValue] = {
    "properties": {"everySteps": {"type": "integer", "description": "Former form of `stages: [{every: ...}]`."}}
}
"""The API server would otherwise drop the field that an older operator writes during a rolling upgrade."""


class LiveFields(Strict):
    """The live values of a spec, as worlds and the status contain them."""

    steps: Every | None = Field(
        default=None, description="The optimizer step at which the job succeeds. Unset: `epochs` decides."
    )
    epochs: Annotated[float, Field(gt=0, le=MAX_EPOCHS)] | None = Field(
        default=None,
        description="Number of times that training reads its text. Unset: `steps` decides.",
        exclude_if=lambda epochs: epochs is None,  # as for `stop`
    )
    save: Save = Field(description="When a checkpoint is written.")
    keep: Annotated[Keep, BeforeValidator(_read_former_keep)] = Field(
        description="Which checkpoints stay.", json_schema_extra=_FORMER_KEEP
    )
    evaluate: dict[ShortName, Every] = Field(
        default={}, max_length=8, description="Steps between two evaluations on each held-out text."
    )
    stop: StopAtLoss | None = Field(
        default=None,
        description="Evaluation loss at which training ends. Unset: it ends after all steps.",
        exclude_if=lambda stop: stop is None,  # an agent before 0.1 refuses a field that it does not know
    )

    def is_stopped(self, step: int, total: int | None) -> bool:
        """Return whether a job that succeeded after a step with these values did so at a loss.

        `total` is the number of its steps if `epochs` decides.
        """
        return self.stop is not None and step < (self.steps or total or step)

    def lets_resume(self, before: "LiveFields", step: int, total: int | None, losses: Mapping[str, float]) -> bool:
        """Return whether a job that succeeded after a step with other values trains on with these.

        `total` is the number of steps with the other values if `epochs` decided. `losses` are the newest of its
        evaluations, by name.
        """
        if not before.is_stopped(step, total):
            return self._exceeds(before, step)
        is_reached = self.stop is not None and self.stop.is_reached(losses)
        return self.stop != before.stop and not is_reached and step < (self.steps or MAX_STEP)

    def _exceeds(self, before: "LiveFields", step: int) -> bool:
        """Return whether a job that trained all its steps with other values may have more with these."""
        if self.steps is not None:
            return (step if before.steps is None else before.steps) < self.steps
        return before.epochs is None or before.epochs < (self.epochs or 0)


LIVE_PATHS: dict[str, tuple[str, ...]] = {
    "steps": ("training", "steps"),
    "epochs": ("training", "epochs"),
    "save": ("checkpoint", "save"),
    "keep": ("checkpoint", "keep"),
    "evaluate": ("evaluation", "every_steps"),
    "stop": ("training", "stop_at_loss"),
}
"""Attributes of the spec by the field of `LiveFields`. Values in a list are stored by the names of its items."""


def live_fields(spec: TrainingJobSpec) -> LiveFields:
    """Return the live values of a spec."""
    return LiveFields(**{name: _read(spec, path) for name, path in LIVE_PATHS.items()})


def with_live_fields(spec: TrainingJobSpec, live: LiveFields) -> TrainingJobSpec:
    """Return a spec with the live values replaced."""
    for name, path in LIVE_PATHS.items():
        spec = _replace(spec, path, getattr(live, name))
    return spec


def describe_changes(before: LiveFields, after: LiveFields) -> list[str]:
    """Return the differences as text: `training.steps is 500, was 300`."""
    if before == after:  # the common case, at every reconciliation
        return []
    old, new = dict(_list_values(before)), dict(_list_values(after))
    changed = [path for path, value in new.items() if old.get(path) != value]
    return [f"spec.{path} is {_format_value(new[path])}, was {_format_value(old.get(path))}" for path in changed]


def _read(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, tuple):
        return {item.name: _read(item, path) for item in value}
    return _read(getattr(value, path[0]), path[1:]) if path else value


def _replace(value: Any, path: tuple[str, ...], new: Any) -> Any:
    """Return a copy with another value at a path. Items of a list that `new` does not name are unchanged."""
    if isinstance(value, tuple):
        return tuple(_replace(item, path, new[item.name]) if item.name in new else item for item in value)
    if not path:
        return new
    return value.model_copy(update={path[0]: _replace(getattr(value, path[0]), path[1:], new)})


def _list_values(live: LiveFields) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each live field, as users write the path. An optional section is one value."""
    for name, path in LIVE_PATHS.items():
        value = getattr(live, name)
        *parents, last = map(to_camel, path)
        field_path = ".".join((*parents, last))
        if isinstance(value, dict):
            yield from ((f"{'.'.join(parents)}[{item}].{last}", item_value) for item, item_value in value.items())
        elif isinstance(value, Strict) and LiveFields.model_fields[name].is_required():
            yield from ((f"{field_path}.{to_camel(field)}", field_value) for field, field_value in value)
        else:
            yield field_path, value


def _format_value(value: Any) -> str:
    if isinstance(value, Strict):
        return f"{{{', '.join(f'{to_camel(name)}: {_format_value(field_value)}' for name, field_value in value)}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return "unset" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
