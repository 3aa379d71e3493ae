"""Reaction to a step whose update was skipped: training continues, or fails with a reason.

All processes read the same metrics of the same step, so that they fail together.
"""

from trainingjob_api.protection import BadStep, Protection
from trainingjob_api.protocol import LATELY_STEPS, FailureReason
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.modelling.signature import Measures

MOST_NON_FINITE = 3
"""Consecutive steps without a finite loss or gradient after which training does not recover by itself."""
MOST_SPIKES = 10
"""Consecutive spikes after which they are the new level of the loss."""
MOST_LATELY = 25
"""Maximum skipped updates among the newest `LATELY_STEPS`, consecutive or not. With more, the job trains on little
data."""


class BadStepError(TrainingError):
    """A step after which training must not continue. All processes of the world raise it together."""


def is_skipped(measures: Measures) -> bool:
    """Return whether the update of a step was skipped."""
    return int(measures.non_finite) > 0 or (measures.spikes is not None and int(measures.spikes) > 0)


def check_step(step: int, measures: Measures, protection: Protection, lately: int) -> None:
    """Check that training may continue after a step.

    `lately` is the number of skipped updates among the newest `LATELY_STEPS`, this step included.

    Raises:
        BadStepError: the spec forbids it, or training would not recover.
    """
    is_too_often = lately > MOST_LATELY
    in_a_row = int(measures.non_finite)
    if in_a_row >= _limit(protection.non_finite, MOST_NON_FINITE) or (in_a_row and is_too_often):
        raise BadStepError(
            FailureReason.NON_FINITE,
            f"loss or gradients were not finite {_tell(in_a_row, step, lately)} Lower spec.optimizer.learningRate, "
            "lengthen spec.schedule.warmupSteps, or set spec.precision.compute to `float32`.",
            path="spec.optimizer.learningRate",
            fatal=protection.non_finite == "stop",
        )
    if protection.spikes is None or measures.spikes is None:
        return
    in_a_row = int(measures.spikes)
    if in_a_row >= _limit(protection.spikes.action, MOST_SPIKES) or (in_a_row and is_too_often):
        raise BadStepError(
            FailureReason.LOSS_SPIKE,
            f"the loss ({float(measures.loss):.4g}) or the norm of the gradients ({float(measures.grad_norm):.4g}) was "
            f"more than {protection.spikes.sigma:g} standard deviations above those of the steps before "
            f"{_tell(in_a_row, step, lately)} Look at the data there, lower spec.optimizer.learningRate, or raise "
            "spec.protection.spikes.sigma.",
            path="spec.protection.spikes",
            fatal=protection.spikes.action == "stop",
        )


def _limit(action: BadStep, most: int) -> int:
    """Return the number of consecutive bad steps at which training ends."""
    return most if action == "skip" else 1


def _tell(in_a_row: int, step: int, lately: int) -> str:
    if lately > MOST_LATELY:
        return (
            f"at step {step}, and of the newest {LATELY_STEPS} updates {lately} were not made: at most {MOST_LATELY}."
        )
    if in_a_row == 1:
        return f"at step {step}, whose update was not made."
    return f"for {in_a_row} steps in a row, up to step {step}; none of them changed the parameters."
