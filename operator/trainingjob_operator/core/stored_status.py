"""Reading and writing a job's status, which is the operator's only persistent memory.

The API server validates a status against the schema, but a stored status may come from another version or from a
manual edit. Unknown fields are dropped: a newer operator adds live fields to the world, which must not be forgotten for
that. Top-level fields that are still unreadable are dropped one by one, so that one bad field does not lose the rest.
"""

from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.manifests import Manifest, get_value


def read_status(job: Manifest) -> TrainingJobStatus:
    """Return a job's status. Fields that do not validate keep their defaults."""
    raw = get_value(job, "status")
    raw = raw if isinstance(raw, dict) else {}
    try:
        return TrainingJobStatus.model_validate(raw)
    except ValidationError as error:
        for problem in error.errors():
            if problem["type"] == "extra_forbidden":
                with suppress(LookupError, TypeError):  # the location of a union names its member, too
                    raw = _remove_field(raw, problem["loc"])
    try:
        return TrainingJobStatus.model_validate(raw)
    except ValidationError as error:
        broken = {str(problem["loc"][0]) for problem in error.errors()}
    return TrainingJobStatus.model_validate({key: value for key, value in raw.items() if key not in broken})


def _remove_field(value: Any, location: tuple[int | str, ...]) -> Any:
    """Return a copy of a JSON value without the field at a location."""
    first, *rest = location
    if not rest:
        return {key: child for key, child in value.items() if key != first}
    changed = _remove_field(value[first], tuple(rest))
    if isinstance(first, int):
        return [*value[:first], changed, *value[first + 1 :]]
    return value | {first: changed}


def write_status(status: TrainingJobStatus) -> Manifest:
    """Return a status as a JSON manifest without unset fields."""
    manifest: Manifest = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return manifest
