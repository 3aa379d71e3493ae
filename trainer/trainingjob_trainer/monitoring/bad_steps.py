"""Reaction to a step whose update was skipped: training continues, or fails with a reason.

All processes read the same metrics of the same step, so that they fail together.
"""

from trainingjob_api.protocol import RECENT_STEPS, FailureReason
from trainingjob_api.spec.protection import BadStep, Protection
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import StepMetrics

MAX_NON_FINITE = 3
"""Consecutive steps without a finite loss or gradient after which training does not recover by itself."""
MAX_SPIKES = 10
"""Consecutive spikes after which they are the new level of the loss."""
MAX_RECENT_SKIPS = 25
"""Maximum skipped updates among the newest `RECENT_STEPS`, consecutive or not. With more, the job trains on little
data."""


class BadStepError(TrainingError):
    """A step after which training must not continue. All processes of the world raise it together."""


def is_skipped(measures: StepMetrics) -> bool:
    """Return whether the update of a step was skipped."""
    return int(measures.non_finite) > 0 or (measures.spikes is not None and int(measures.spikes) > 0)


def check_step(step: int, measures: StepMetrics, protection: Protection, recent_skips: int) -> None:
    """Check that training may continue after a step.

    `recent_skips` is the number of skipped updates among the newest `RECENT_STEPS`, this step included.

    Raises:
        BadStepError: the spec forbids it, or training would not recover.
    """
    is_too_often = recent_skips > MAX_RECENT_SKIPS
    in_a_row = int(measures.non_finite)
    if in_a_row >= _max_consecutive(protection.non_finite, MAX_NON_FINITE) or (in_a_row and is_too_often):
        raise BadStepError(
            FailureReason.NON_FINITE,
            f"loss or gradients were not finite {_describe_steps(in_a_row, step, recent_skips)} Lower "
            "spec.optimizer.learningRate, raise spec.schedule.warmup, or set spec.precision.compute to "
            "`float32`.",
            path="spec.optimizer.learningRate",
            fatal=protection.non_finite == "stop",
        )
    if protection.spikes is None or measures.spikes is None:
        return
    in_a_row = int(measures.spikes)
    if in_a_row >= _max_consecutive(protection.spikes.action, MAX_SPIKES) or (in_a_row and is_too_often):
        raise BadStepError(
            FailureReason.LOSS_SPIKE,
            f"loss ({float(measures.loss):.4g}) or gradient norm ({float(measures.grad_norm):.4g}) was more than "
            f"{protection.spikes.sigma:g} standard deviations above the window's mean "
            f"{_describe_steps(in_a_row, step, recent_skips)} Look at the data of these steps. Lower "
            "spec.optimizer.learningRate, or raise spec.protection.spikes.sigma.",
            path="spec.protection.spikes",
            fatal=protection.spikes.action == "stop",
        )


def _max_consecutive(action: BadStep, limit: int) -> int:
    """Return the number of consecutive bad steps at which training ends."""
    return limit if action == "skip" else 1


def _describe_steps(in_a_row: int, step: int, lately: int) -> str:
    if lately > MAX_RECENT_SKIPS:
        return (
            f"at step {step}. {lately} of the newest {RECENT_STEPS} updates were skipped (limit: {MAX_RECENT_SKIPS})."
        )
    if in_a_row == 1:
        return f"at step {step}, whose update was skipped."
    return f"for {in_a_row} consecutive steps up to step {step}, whose updates were skipped."
