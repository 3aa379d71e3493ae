"""Invariants of a job under any faults, checked with each status that is written.

The checker receives the hosts' reports and every status, and records violations. It influences nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainingjob_api.protocol import HostReport
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt


@dataclass
class InvariantChecker:
    """The observations of one job so far. `problems` is empty while every invariant holds."""

    problems: list[str] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    """The last state of every world, by generation. The status keeps only the last 20."""
    highest: int = 0
    """The highest step of any host."""
    committed: int = 0
    """The highest step that any host has reported as committed."""
    generation: int = 0
    """The newest generation that has trained a step."""

    def record_report(self, report: HostReport) -> None:
        """Record a host's report."""
        if report.progress:
            self.highest = max(self.highest, report.progress.step)
            if report.progress.step > (report.restored or 0):
                self.generation = max(self.generation, report.generation)
        self.committed = max(self.committed, report.committed or 0)

    def record_status(self, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """Record a status that has just replaced another one."""
        self.attempts |= {attempt.generation: attempt for attempt in after.attempts}
        self.problems += find_problems(before, after)


def find_problems(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[str]:
    """Yield the violations in a soak, after which every job must have succeeded."""
    if after.phase == "Failed":
        failed = next((condition.message for condition in after.conditions if condition.type == "Failed"), "")
        yield f"the job failed: {failed}"
    yield from find_impossible_states(before, after)


def _find_simultaneous_worlds(status: TrainingJobStatus) -> Iterator[str]:
    """Yield worlds that live at once. Replicas have one world for each slice."""
    living: dict[int | None, list[int]] = {}
    for attempt in status.attempts:
        if attempt.ended is None:
            living.setdefault(attempt.slice, []).append(attempt.generation)
    for generations in living.values():
        if len(generations) > 1:
            yield f"{len(generations)} worlds live at once: generations {', '.join(map(str, generations))}"


def find_impossible_states(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[str]:
    """Yield states that no job can have, in one status or between two consecutive statuses."""
    old, new = before.world, after.world
    if old and not new:
        yield "the world was forgotten"
    if old and new and new.generation < old.generation:
        yield f"generation {new.generation} came after {old.generation}"
    if old and new and new.generation == old.generation and new.members != old.members:
        yield f"generation {new.generation} changed its members"
    yield from _find_simultaneous_worlds(after)
    if new and after.attempts and after.attempts[-1].generation != new.generation:
        yield f"generation {new.generation} has no attempt"
    if after.restarts.total < before.restarts.total:
        yield f"{before.restarts.total} restarts became {after.restarts.total}"
    yield from _find_miscounted_restarts(before, after)
    yield from _find_gaps(after)
    spent, more = sum(before.goodput.seconds.values()), sum(after.goodput.seconds.values())
    if more < spent - 0.01:
        yield f"{spent:.3f} seconds of the ledger became {more:.3f}"


def _find_miscounted_restarts(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[str]:
    """Yield a count of restarts that differs from the attempts that ended with one. The metrics read the attempts."""
    generations = {attempt.generation for attempt in after.attempts}
    if any(attempt.ended is None and attempt.generation not in generations for attempt in before.attempts):
        return  # the status has no place for all attempts
    known = {attempt.generation for attempt in before.attempts if attempt.restarted}
    marked = [attempt.generation for attempt in after.attempts if attempt.restarted and attempt.generation not in known]
    counted = after.restarts.total - before.restarts.total
    if len(marked) != counted >= 0:
        yield f"{counted} restarts were counted, and {len(marked)} attempts ended with one: generations {marked}"


def _find_gaps(status: TrainingJobStatus) -> Iterator[str]:
    """Yield steps that the lineage holds twice or lacks."""
    end = 0
    for number, span in enumerate(status.lineage):
        if span.first != end + 1:
            yield f"generation {span.generation} begins at step {span.first}, and the one before it ends at {end}"
        if span.last is None and number < len(status.lineage) - 1:
            yield f"generation {span.generation} is open, and a later one has begun"
        end = span.first - 1 if span.last is None else span.last
