"""Decision after a training step: which actions follow it, and whether the world is left.

The actions run in this order: report, end the round, compare replicas, snapshot, evaluate, save, leave. A step is
reported first, because its world may end with any later action. A process that receives EXIT may be killed soon. Its
world therefore saves before it evaluates; the next world runs the missing evaluation. While saves fail, no world leaves
without a save.
"""

from dataclasses import dataclass, replace
from enum import Enum

from trainingjob_trainer.state import Signal

WAIT_FOR_ROUND = Signal.EXIT | Signal.SAVE | Signal.RESCALE
"""Within a round, a replica differs from the others: a checkpoint or an exit there would lose steps."""


@dataclass(frozen=True)
class Due:
    """What the job requires after one step, before any signal is considered. It is the same on all processes."""

    last_step: int
    round_end: bool = False
    """Whether a round of the job's replicas ends. It may continue after a later step: decide again then."""
    save: bool = False
    snapshot: bool = False
    evaluation: bool = False
    comparison: bool = False
    new_batch_size: bool = False
    """Whether the next step has another batch size, whose program may have to be compiled first."""
    saves_fail: bool = False
    """Whether the newest awaited save has failed."""
    in_round: bool = False
    """Whether a round continues after the step. Saves, evaluations and exits wait for its end."""


class Leave(Enum):
    """How a world is left after a step."""

    NO = "no"
    WITH_SNAPSHOT = "with a snapshot"
    """A save is needed only if some process does not hold the snapshot."""
    WITH_CHECKPOINT = "with a checkpoint"


@dataclass(frozen=True)
class StepActions:
    """The actions that follow one step."""

    report: bool = False
    """Read and report the step's metrics now. Otherwise they are read after the next step is dispatched."""
    compare: bool = False
    snapshot: bool = False
    evaluate: bool = False
    is_interruptible: bool = False
    """Whether EXIT interrupts the evaluation."""
    save: bool = False
    leave: Leave = Leave.NO
    evaluation_missing: bool = False
    """Whether a due evaluation is left to the next world."""
    ends: bool = False
    """Whether training ends with the step, because of its held-out loss."""

    def interrupt_evaluation(self) -> "StepActions":
        """Return the remaining actions after EXIT interrupted the evaluation: a world that leaves with a checkpoint."""
        return replace(
            self,
            compare=not self.compare,
            snapshot=not self.snapshot,
            evaluate=False,
            save=True,
            leave=Leave.WITH_CHECKPOINT,
            evaluation_missing=True,
        )

    def end_training(self) -> "StepActions":
        """Return the remaining actions after the evaluation of a step that ends training."""
        return replace(self, compare=not self.compare, snapshot=False, evaluate=False, save=True, ends=True)


def step_actions(step: int, signals: Signal, due: Due) -> StepActions:
    """Return the actions after a step, from the signals that are known so far.

    The signals of the step itself are known once it is reported: the actions are then decided again with them.
    """
    if due.in_round:
        signals, due = signals & ~WAIT_FOR_ROUND, replace(due, save=False, evaluation=False)
    save = due.save or step == due.last_step or Signal.SAVE in signals
    leave = Leave.NO
    if save or not due.saves_fail:
        if Signal.EXIT in signals:
            leave = Leave.WITH_CHECKPOINT
        elif Signal.RESCALE in signals:
            leave = Leave.WITH_SNAPSHOT
    snapshot = due.snapshot or leave is not Leave.NO
    save |= leave is Leave.WITH_CHECKPOINT
    evaluate = due.evaluation and leave is not Leave.WITH_CHECKPOINT
    need_report = due.round_end, due.snapshot, due.evaluation, due.comparison, due.new_batch_size
    return StepActions(
        report=bool(signals) or save or any(need_report),
        compare=due.comparison or snapshot or save,
        snapshot=snapshot,
        evaluate=evaluate,
        is_interruptible=evaluate and not due.saves_fail,
        save=save,
        leave=leave,
        evaluation_missing=due.evaluation and not evaluate,
    )
