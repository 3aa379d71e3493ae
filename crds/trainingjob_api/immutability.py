"""Reasons why fields are immutable: what depends on them, and what to do instead."""

from trainingjob_api.meta import Immutable

_RESUME_ADVICE = (
    "Delete this job and create it anew with the same checkpoint.uri and `checkpoint.takeover: true`: it goes on from "
    "the newest checkpoint."
)
_NEW_JOB_ADVICE = "Create another job with a checkpoint.uri of its own: it begins at step 0."
WORLDS = Immutable("the worlds of the job were planned with it.", _RESUME_ADVICE)
MODEL_STATE = Immutable("the checkpoints hold the state of this model.", _NEW_JOB_ADVICE)
LOSS_CURVE = Immutable("the loss curve would no longer be that of one job.", _RESUME_ADVICE)
SEQUENCES = Immutable(
    LOSS_CURVE.reason, f"{_RESUME_ADVICE} A different sequenceLength or seed requires a new checkpoint.uri."
)
DATA_ORDER = Immutable("the order of the data that was trained on depends on it.", _NEW_JOB_ADVICE)
STORAGE = Immutable(
    "the job owns its folder.", "Create another job: with `checkpoint.takeover: true` it owns a folder of old."
)
INITIALIZATION = Immutable("the job has begun with what it says.", _NEW_JOB_ADVICE)
PODS = Immutable("the pods were made with it.", _RESUME_ADVICE)
