"""Simulation of a job under faults, with the same `decide` and `next_status` as for real jobs.

Time jumps from one change to the next. Between two changes the rules themselves are evaluated to find the time of the
next decision. No timeout or cooldown is modelled here.
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
"""Resolution in seconds of the search for the next decision. A real operator decides as often."""
BEFORE = 0.01
"""Seconds before a change at which none of its effects are visible."""


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation."""

    status: TrainingJobStatus
    seconds: float
    """Seconds until the job ended, or until the end of the simulation."""
    watched: float
    """The same. For a failed job at least the time of all its steps, but at most the simulated time."""
    step: int
    """The newest committed step, or the newest step of the current world."""
    worlds: int
    looks: int
    """Number of decisions."""
    ideal_seconds: float
    """The time of the same number of steps at the largest size, without faults and checkpoints."""

    @property
    def throughput(self) -> float:
        """Return `ideal_seconds` as a share of the observed time."""
        return self.ideal_seconds / self.watched if self.watched else 0.0


def live(
    plan: Plan, pace: Pace, faults: Sequence[Fault], seconds: float, spares: int = 0
) -> Iterator[tuple[Life, Decision]]:
    """Yield the simulated job after each decision, until the job ends or the given time is over.

    `plan` is valid, `pace` has all its allowed sizes. Faults name slices below `spec.slices.max`.
    """
    life, turns = Life(plan, pace, Spares(spares)), Turns()
    due = in_order(faults)[::-1]
    decision = life.look()
    yield life, decision
    while life.now < seconds and not isinstance(decision, (Succeed, Fail)):
        change = min(life.next_change(), due[-1].at if due else float("inf"), seconds)
        life.now = change if life.is_away else turns.find(life, decision, change)
        if not life.is_away:
            is_breaking = bool(due) and due[-1].at <= life.now  # update the status before a fault
            decision = life.look(tell=is_breaking or life.now >= seconds)
        while due and due[-1].at <= life.now:
            life.suffer(due.pop())
        life.settle()
        yield life, decision


class Turns:
    """Finds the time at which the rules change their decision although nothing but time passes."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def find(self, life: Life, decision: Decision, change: float) -> float:
        """Return the time of the next decision, to a second, or `change` if the decision holds until then."""
        if change - life.now <= SHORTEST:
            return change
        # No decision lasts in a broken world, so this check is skipped.
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
    """Return the result of a job that runs as in `live`."""
    life, decision, looks = None, None, 0
    for life, decision in live(plan, pace, faults, seconds, spares):  # noqa: B007  # the last decision is used below
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
