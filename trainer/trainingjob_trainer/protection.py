"""What follows a step whose update was not made: training goes on, or it ends in words.

All processes read the same measures of the same step, so they end together.
"""

from trainingjob_api.protection import BadStep, Protection
from trainingjob_api.protocol import LATELY_STEPS, FailureReason
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.modelling.signature import Measures

MOST_NON_FINITE = 3
"""Steps in a row without a finite loss or gradient after which training will not recover by itself."""
MOST_SPIKES = 10
"""Spikes in a row after which they are none: the loss is another one now."""
MOST_LATELY = 25
"""Updates of the newest `LATELY_STEPS` that may be left out, in a row or not: more, and the job trains on little."""


class BadStepError(TrainingError):
    """A step after which training must not go on: all processes of the world come to it together."""


def is_skipped(measures: Measures) -> bool:
    """Return whether the update of a step was not made."""
    return int(measures.non_finite) > 0 or (measures.spikes is not None and int(measures.spikes) > 0)


def check_step(step: int, measures: Measures, protection: Protection, lately: int) -> None:
    """Let training go on after a step; `lately` of the newest `LATELY_STEPS` updates were not made, its own included.

    Raises:
        BadStepError: the spec says that it must not, or it would not recover.
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
    """Return after how many such steps in a row training ends."""
    return most if action == "skip" else 1


def _tell(in_a_row: int, step: int, lately: int) -> str:
    if lately > MOST_LATELY:
        return (
            f"at step {step}, and of the newest {LATELY_STEPS} updates {lately} were not made: at most {MOST_LATELY}."
        )
    if in_a_row == 1:
        return f"at step {step}, whose update was not made."
    return f"for {in_a_row} steps in a row, up to step {step}; none of them changed the parameters."
