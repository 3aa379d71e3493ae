"""Checks of an edit of a job against the job's current state.

The API server enforces immutable fields (`trainingjob_api.cel`). The new spec is validated like any spec.
"""

import math
from collections.abc import Iterator
from typing import Any

from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.problem import Problem
from trainingjob_api.schedule_fit import check_epochs
from trainingjob_api.shares import is_share, resolve_steps
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value
from trainingjob_operator.core.stored_status import read_status

STEPS = "spec.training.steps"
EPOCHS = "spec.training.epochs"
DEADLINE = "spec.activeDeadlineSeconds"
EDITABLE_AFTER_END = ("ttlSecondsAfterFinished",)
"""Fields that an edit can still change after the end of a job."""


def check_update(old: Manifest, new: Manifest) -> Iterator[Problem]:
    """Check that the edit does not end the job before its current step, and that a finished job is not edited."""
    status = read_status(old)
    if status.completion_time is not None:
        yield from _check_finished(old, new)
        return
    steps, before = (get_int(job, "spec", "training", "steps") for job in (new, old))
    done = status.progress.step if status.progress else 0
    if steps is not None and steps < min(done, done if before is None else before):
        message = (
            f"{steps} must be at least {done:,}, the current step of the job. At the current step, the job saves and "
            "succeeds."
        )
        yield Problem(STEPS, steps, message, (str(done),))
    yield from _check_epochs(old, new, done, status.progress.of if status.progress else None)
    yield from _check_deadline(old, new, status.running_seconds)


def _check_epochs(old: Manifest, new: Manifest, done: int, total: int | None) -> Iterator[Problem]:
    """Check that the job has not trained more than the new number of epochs. `total`: the steps of the former number.

    Epochs and steps are only proportional if all batches have the same size.
    """
    epochs, before = (get_value(job, "spec", "training", "epochs") for job in (new, old))
    has_numbers = all(isinstance(number, int | float) and number > 0 for number in (epochs, before))
    if not has_numbers or not total or epochs >= before or get_value(new, "spec", "training", "batchSchedule"):
        return
    steps = math.ceil(total * epochs / before)
    if steps < done:
        nearest = f"{math.ceil(100 * done * before / total) / 100:g}"
        message = (
            f"{epochs:g} must be at least {nearest}, which the job has trained by step {done:,}. With fewer epochs, "
            "the job saves and succeeds at its current step."
        )
        yield Problem(EPOCHS, epochs, message, (nearest,))
    yield from _check_schedule(new, epochs, steps)


def _check_schedule(new: Manifest, epochs: float, steps: int) -> Iterator[Problem]:
    """Check that the learning-rate schedule fits into the steps of fewer epochs. The hosts would fail the job."""
    parsed = parse_spec(get_value(new, "spec"))
    if parsed.spec is None or not parsed.is_as_written(("schedule", "training")):
        return  # the problems of these sections come first
    for misfit in check_epochs(parsed.spec, steps):
        message = (
            f"{epochs:g} is too small: the job would fail, because `{misfit.path}` does not fit. {misfit.message} Set "
            "more epochs."
        )
        yield Problem(EPOCHS, epochs, message)


def _check_deadline(old: Manifest, new: Manifest, run_seconds: float) -> Iterator[Problem]:
    """Check that a new deadline has not passed. The status may lag, so that the job has run for longer than it says."""
    deadline, before = (get_int(job, "spec", "activeDeadlineSeconds") for job in (new, old))
    if deadline is not None and deadline != before and deadline < run_seconds:
        message = (
            f"{deadline} must be greater than {run_seconds:,.0f}, the seconds that the job has run. It would fail at "
            "once, and lose the steps since its last checkpoint. To stop the job with a save, set `spec.suspend: true`."
        )
        yield Problem(DEADLINE, deadline, message)


def warn_of_update(old: Manifest, new: Manifest) -> Iterator[Problem]:
    """Warn that a decay to the last step, or a warm-up that is a share of the steps, changes with the steps."""
    steps, before = (get_int(each, "spec", "training", "steps") for each in (new, old))
    shape = get_text(new, "spec", "schedule", "type") or "cosine"
    warmup = get_value(new, "spec", "schedule", "warmup")
    if read_status(old).world is None or _read_length(new) == _read_length(old):
        return
    if steps is None or before is None:
        yield from _warn_of_counted_steps(new, depends=shape != "constant" or is_share(warmup))
        return
    effects = []
    if shape != "constant":
        effects.append(f"The schedule `{shape}` then decays over {steps:,} steps instead of {before:,}.")
    if is_share(warmup):
        new_warmup, old_warmup = (resolve_steps(str(warmup), each) for each in (steps, before))
        effects.append(f"The warm-up of {warmup} then has {new_warmup:,} steps instead of {old_warmup:,}.")
    if effects:
        yield Problem(STEPS, steps, " ".join(("changes the learning rate from the next step on.", *effects)))


def _read_length(job: Manifest) -> tuple[Any, Any]:
    """Return `training.steps` and `training.epochs`."""
    return get_value(job, "spec", "training", "steps"), get_value(job, "spec", "training", "epochs")


def _warn_of_counted_steps(new: Manifest, *, depends: bool) -> Iterator[Problem]:
    """Warn of another learning rate, which depends on the number of steps, if the hosts count the steps."""
    steps, epochs = _read_length(new)
    path, value = (EPOCHS, epochs) if steps is None else (STEPS, steps)
    if depends:
        message = "changes the learning rate from the next step on, because it changes the number of steps."
        yield Problem(path, value, message)


def describe_next_job(job: Manifest) -> str:
    """Return how to train on after a job that is over, with another object."""
    if get_value(job, "spec", "program", "command") is not None:  # no job owns its folder, and `takeover` is rejected
        return (
            "Create another job with the same `spec.checkpoint.uri`. The program resumes from what it has saved there."
        )
    return (
        "Create another job with the same `spec.checkpoint.uri` and `spec.checkpoint.takeover: true`. It resumes from "
        "the newest checkpoint."
    )


def _check_finished(old: Manifest, new: Manifest) -> Iterator[Problem]:
    before, after = (section if isinstance(section := get_value(each, "spec"), dict) else {} for each in (old, new))
    for name in sorted({*before, *after}):
        if name not in EDITABLE_AFTER_END and before.get(name) != after.get(name):
            message = f"must not change, because the job has finished. {describe_next_job(old)}"
            yield Problem(f"spec.{name}", after.get(name), message)
