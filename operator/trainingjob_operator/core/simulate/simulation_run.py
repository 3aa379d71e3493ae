"""Simulation of a job under faults, with the same `decide` and `next_status` as for real jobs.

Time jumps from one change to the next. Between two changes the rules themselves are evaluated to find the time of the
next decision. No timeout or cooldown is modelled here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.decide.decisions import CollectDiagnostics, Decision, DrainWorld, Fail, Succeed, Wait
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import Fault, Spares, sort_faults
from trainingjob_operator.core.simulate.simulated_job import SimulatedJob

RESOLUTION_SECONDS = 1.0
"""Resolution in seconds of the search for the next decision. A real operator decides as often."""
BEFORE_CHANGE_SECONDS = 0.01
"""Seconds before a change at which none of its effects are visible."""


@dataclass(frozen=True)
class SimulationResult:
    """The result of a simulation."""

    status: TrainingJobStatus
    seconds: float
    """Seconds until the job ended, or until the end of the simulation."""
    observed_seconds: float
    """The same. For a failed job at least the time of all its steps, but at most the simulated time."""
    step: int
    """The newest committed step, or the newest step of the current world."""
    num_worlds: int
    num_decisions: int
    """Number of decisions."""
    ideal_seconds: float
    """The time of the same number of steps at the largest size, without faults and checkpoints."""

    @property
    def throughput(self) -> float:
        """Return `ideal_seconds` as a share of the observed time."""
        return self.ideal_seconds / self.observed_seconds if self.observed_seconds else 0.0


def run_job(
    plan: Plan, durations: Durations, faults: Sequence[Fault], seconds: float, spares: int = 0
) -> Iterator[tuple[SimulatedJob, Decision]]:
    """Yield the simulated job after each decision, until the job ends or the given time is over.

    `plan` is valid, `durations` has all its allowed sizes. Faults name slices below `spec.slices.max`.
    """
    job, decision_times = SimulatedJob(plan, durations, Spares(spares)), DecisionTimes()
    due = sort_faults(faults)[::-1]
    decision = job.reconcile()
    yield job, decision
    while job.now < seconds and not isinstance(decision, (Succeed, Fail)):
        change = min(job.next_change(), due[-1].at if due else float("inf"), seconds)
        job.now = change if job.is_operator_down else decision_times.find_next_decision(job, decision, change)
        if not job.is_operator_down:
            is_fault_due = bool(due) and due[-1].at <= job.now  # update the status before a fault
            decision = job.reconcile(update_status=is_fault_due or job.now >= seconds)
        while due and due[-1].at <= job.now:
            job.apply_fault(due.pop())
        job.apply_due_changes()
        yield job, decision


class DecisionTimes:
    """Finds the time at which the rules change their decision although nothing but time passes."""

    def __init__(self) -> None:
        self._typical_delays: dict[str, float] = {}

    def find_next_decision(self, job: SimulatedJob, decision: Decision, change: float) -> float:
        """Return the time of the next decision, to a second, or `change` if the decision holds until then."""
        if change - job.now <= RESOLUTION_SECONDS:
            return change
        # No decision lasts in a broken world, so this check is skipped.
        if not job.is_broken and (
            job.decision_holds(decision, change) or job.decision_holds(decision, change - BEFORE_CHANGE_SECONDS)
        ):
            return change
        last_same, step = job.now, RESOLUTION_SECONDS
        typical = job.now + self._typical_delays.get(_decision_reason(decision), 0.0)
        if last_same < typical < change and job.decision_holds(decision, typical):
            last_same = typical
        while last_same + step < change and job.decision_holds(decision, last_same + step):
            last_same, step = last_same + step, step * 2
        first_other = min(last_same + step, change)
        while first_other - last_same > RESOLUTION_SECONDS:
            middle = (last_same + first_other) / 2
            last_same, first_other = (
                (middle, first_other) if job.decision_holds(decision, middle) else (last_same, middle)
            )
        self._typical_delays[_decision_reason(decision)] = last_same - job.now
        return first_other


def _decision_reason(decision: Decision) -> str:
    return decision.reason if isinstance(decision, (Wait, DrainWorld, CollectDiagnostics)) else ""


def simulate(
    plan: Plan, durations: Durations, faults: Sequence[Fault], seconds: float, spares: int = 0
) -> SimulationResult:
    """Return the result of a job that runs as in `live`."""
    job, decision, num_decisions = None, None, 0
    for job, decision in run_job(plan, durations, faults, seconds, spares):  # noqa: B007  # the last decision is used below
        num_decisions += 1
    assert job, "there is a first decision"  # noqa: S101
    total_seconds = plan.spec.training.step_limit * durations.step_seconds[plan.allowed_sizes[-1]]
    return SimulationResult(
        status=job.status,
        seconds=job.now,
        observed_seconds=min(seconds, max(job.now, total_seconds)) if isinstance(decision, Fail) else job.now,
        step=job.step,
        num_worlds=job.num_worlds,
        num_decisions=num_decisions,
        ideal_seconds=job.step * durations.step_seconds[plan.allowed_sizes[-1]],
    )
