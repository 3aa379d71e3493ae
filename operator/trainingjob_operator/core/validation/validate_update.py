"""Checks of an edit of a job against the job's current state.

The API server enforces immutable fields (`trainingjob_api.cel`). The new spec is validated like any spec.
"""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value
from trainingjob_operator.core.stored_status import read_status

STEPS = "spec.training.steps"
EDITABLE_AFTER_END = ("ttlSecondsAfterFinished",)
"""Fields that an edit can still change after the end of a job."""


def check_update(old: Manifest, new: Manifest) -> Iterator[Problem]:
    """Check that the job does not end before its current step, and that a finished job is not edited."""
    status = read_status(old)
    if status.completion_time is not None:
        yield from _check_finished(old, new)
        return
    steps, before = (get_int(job, "spec", "training", "steps") for job in (new, old))
    done = status.progress.step if status.progress else 0
    if steps is not None and before is not None and steps < min(done, before):
        message = (
            f"{steps} must be at least {done:,}, the current step of the job. At the current step, the job saves and "
            "succeeds."
        )
        yield Problem(STEPS, steps, message, (str(done),))


def warn_of_update(old: Manifest, new: Manifest) -> Iterator[Problem]:
    """Warn that a schedule which decays to the last step changes with that step."""
    steps, before = (get_int(each, "spec", "training", "steps") for each in (new, old))
    shape = get_text(new, "spec", "schedule", "type") or "cosine"
    has_run = read_status(old).world is not None
    if has_run and steps != before and shape != "constant":
        message = (
            f"changes the learning rate from the next step on. The schedule `{shape}` then decays over {steps:,} steps "
            f"instead of {before:,}."
        )
        yield Problem(STEPS, steps, message)


def _check_finished(old: Manifest, new: Manifest) -> Iterator[Problem]:
    before, after = (section if isinstance(section := get_value(each, "spec"), dict) else {} for each in (old, new))
    for name in sorted({*before, *after}):
        if name not in EDITABLE_AFTER_END and before.get(name) != after.get(name):
            message = (
                "must not change, because the job has finished. Create another job with the same `spec.checkpoint.uri` "
                "and `spec.checkpoint.takeover: true`. It resumes from the newest checkpoint."
            )
            yield Problem(f"spec.{name}", after.get(name), message)
