"""Reading back the operator's own memory: the status of a job, as it was last written.

The API server checks a status against the schema, so it reads back as it was written; but it may be of an older version
of the schema, or edited by hand. What cannot be read is dropped field by field, never the whole memory for one field.
"""

from pydantic import ValidationError

from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.core.manifests import Manifest, dig


def read_status(job: Manifest) -> TrainingJobStatus:
    """Return a job's status; fields that make no sense are left at their defaults."""
    raw = dig(job, "status")
    raw = raw if isinstance(raw, dict) else {}
    try:
        return TrainingJobStatus.model_validate(raw)
    except ValidationError as error:
        broken = {str(problem["loc"][0]) for problem in error.errors()}
    return TrainingJobStatus.model_validate({key: value for key, value in raw.items() if key not in broken})


def write_status(status: TrainingJobStatus) -> Manifest:
    """Return a status as the API server takes it: without what is unset."""
    written: Manifest = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return written
