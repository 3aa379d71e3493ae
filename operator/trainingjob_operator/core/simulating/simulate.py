"""The life of a job under faults, by the same `decide` and `next_status` that run real jobs.

Time jumps from one change to the next. Between two of them the rules are asked when they would decide otherwise for
the time alone that passes, from silence to cooldown: nothing of that stands here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.deciding.decisions import Decision, Examine, Fail, Leave, Succeed, Wait
from trainingjob_operator.core.simulating.faults import Fault, Spares, in_order
from trainingjob_operator.core.simulating.life import Life
from trainingjob_operator.core.simulating.pace import Pace

SHORTEST = 1.0
"""Seconds to which it is found when the rules decide otherwise: real operators look as often."""
BEFORE = 0.01
"""So long before a change nothing of it is seen."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    status: TrainingJobStatus
    seconds: float
    """That it lived, or was watched."""
    watched: float
    """The same; of a job that failed at least as long as all its steps take, and at most as long as it would have been
    watched."""
    step: int
    """The newest step that is saved or was reached by the world that trains."""
    worlds: int
    looks: int
    """Decisions that were made."""
    ideal_seconds: float
    """What as many steps take at the largest size, without a fault and without a save."""

    @property
    def throughput(self) -> float:
        """Return the share of the steps that the largest size makes in the time without a fault."""
        return self.ideal_seconds / self.watched if self.watched else 0.0


def live(
    plan: Plan, pace: Pace, faults: Sequence[Fault], seconds: float, spares: int = 0
) -> Iterator[tuple[Life, Decision]]:
    """Yield a job's life after each decision, for so many seconds or until it is over.

    `plan` is valid, `pace` has all its allowed sizes; faults name slices below `spec.slices.max`.
    """
    life, turns = Life(plan, pace, Spares(spares)), Turns()
    due = in_order(faults)[::-1]
    decision = life.look()
    yield life, decision
    while life.now < seconds and not isinstance(decision, (Succeed, Fail)):
        change = min(life.next_change(), due[-1].at if due else float("inf"), seconds)
        life.now = change if life.is_away else turns.find(life, decision, change)
        if not life.is_away:
            is_breaking = bool(due) and due[-1].at <= life.now  # what was done until then is told before
            decision = life.look(tell=is_breaking or life.now >= seconds)
        while due and due[-1].at <= life.now:
            life.suffer(due.pop())
        life.settle()
        yield life, decision


class Turns:
    """When the rules decide otherwise for the time alone that passes: found by asking them."""

    def __init__(self) -> None:
        """Begin without any experience."""
        self._usual: dict[str, float] = {}

    def find(self, life: Life, decision: Decision, change: float) -> float:
        """Return when another decision comes, to a second; `change` where none does before that."""
        if change - life.now <= SHORTEST:
            return change
        # Nothing lasts in a world that is broken, so that question is spared.
        if not life.is_broken and (life.stays(decision, change) or life.stays(decision, change - BEFORE)):
            return change
        same, step = life.now, SHORTEST
        usual = life.now + self._usual.get(_name(decision), 0.0)
        if same < usual < change and life.stays(decision, usual):
            same = usual
        while same + step < change and life.stays(decision, same + step):
            same, step = same + step, step * 2
        other = min(same + step, change)
        while other - same > SHORTEST:
            middle = (same + other) / 2
            same, other = (middle, other) if life.stays(decision, middle) else (same, middle)
        self._usual[_name(decision)] = same - life.now
        return other


def _name(decision: Decision) -> str:
    return decision.reason if isinstance(decision, (Wait, Leave, Examine)) else ""


def simulate(plan: Plan, pace: Pace, faults: Sequence[Fault], seconds: float, spares: int = 0) -> Outcome:
    """Return what became of a job that lived as `live` has it."""
    life, decision, looks = None, None, 0
    for life, decision in live(plan, pace, faults, seconds, spares):  # noqa: B007  # the last one
        looks += 1
    assert life, "there is a first decision"  # noqa: S101
    whole = plan.spec.training.steps * pace.steps[plan.allowed[-1]]
    return Outcome(
        status=life.status,
        seconds=life.now,
        watched=min(seconds, max(life.now, whole)) if isinstance(decision, Fail) else life.now,
        step=life.step,
        worlds=life.worlds,
        looks=looks,
        ideal_seconds=life.step * pace.steps[plan.allowed[-1]],
    )
