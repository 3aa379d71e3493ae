"""Reasons why fields are immutable: what depends on them, and what to do instead."""

from trainingjob_api.meta import Immutable

_RESUME_ADVICE = (
    "Delete this job and create it again with the same `checkpoint.uri` and `checkpoint.takeover: true`. It resumes "
    "from the newest checkpoint."
)
_NEW_JOB_ADVICE = "Create another job with a separate `checkpoint.uri`. It starts at step 0."
WORLDS = Immutable("the worlds of the job are planned with it.", _RESUME_ADVICE)
MODEL_STATE = Immutable("the checkpoints contain the state of this model.", _NEW_JOB_ADVICE)
LOSS_CURVE = Immutable("the loss curve would no longer belong to one job.", _RESUME_ADVICE)
SEQUENCES = Immutable(
    LOSS_CURVE.reason, f"{_RESUME_ADVICE} A different sequenceLength or seed requires a separate `checkpoint.uri`."
)
DATA_ORDER = Immutable("it determines the order of the training data.", _NEW_JOB_ADVICE)
STORAGE = Immutable(
    "the job owns its folder.",
    "Create another job with `checkpoint.takeover: true`, which transfers ownership of a folder.",
)
INITIALIZATION = Immutable("the job has started from this checkpoint.", _NEW_JOB_ADVICE)
PODS = Immutable("the pods are created with it.", _RESUME_ADVICE)
