"""Reading and writing a job's status, which is the operator's only persistent memory.

The API server validates a status against the schema, but a stored status may come from an older schema version or from
a manual edit. Unreadable top-level fields are dropped one by one, so that one bad field does not lose the rest.
"""

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
        broken = {str(problem["loc"][0]) for problem in error.errors()}
    return TrainingJobStatus.model_validate({key: value for key, value in raw.items() if key not in broken})


def write_status(status: TrainingJobStatus) -> Manifest:
    """Return a status as a JSON manifest without unset fields."""
    manifest: Manifest = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return manifest
