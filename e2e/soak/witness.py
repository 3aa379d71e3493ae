"""What must hold at every moment of a job's life, whatever strikes: checked with each status that is written.

The witness hears what hosts report and sees every status, and notes what may never be. It decides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainingjob_api.protocol import HostReport, Phase
from trainingjob_api.status import Attempt, TrainingJobStatus


@dataclass
class Witness:
    """All that was seen of one job so far. `problems` is empty as long as nothing was wrong."""

    problems: list[str] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    """Every world by its generation, as it was last told: the status keeps the last 20 alone."""
    highest: int = 0
    """The highest step that any host has made."""
    committed: int = 0
    """The highest step that any host has said to be saved for good."""
    phases: dict[int, Phase] = field(default_factory=dict)
    """What the host of each slice does, as it last said."""
    generation: int = 0
    """The newest world that has made a step."""

    def hear(self, report: HostReport) -> None:
        """Take note of what a host says."""
        self.phases[report.slice] = report.phase
        if report.progress:
            self.highest = max(self.highest, report.progress.step)
            if report.progress.step > (report.restored or 0):
                self.generation = max(self.generation, report.generation)
        self.committed = max(self.committed, report.committed or 0)

    def see(self, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """Take note of a status that was just written over another."""
        self.attempts |= {attempt.generation: attempt for attempt in after.attempts}
        self.problems += find_problems(before, after)


def find_problems(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[str]:
    """Yield what may not be in a soak, after which every job is to have succeeded."""
    if after.phase == "Failed":
        failed = next((one.message for one in after.conditions if one.type == "Failed"), "")
        yield f"the job failed: {failed}"
    yield from find_contradictions(before, after)


def find_contradictions(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[str]:
    """Yield what can be true of no job: in a status by itself, or after the one before it."""
    old, new = before.world, after.world
    if old and not new:
        yield "the world was forgotten"
    if old and new and new.generation < old.generation:
        yield f"generation {new.generation} came after {old.generation}"
    if old and new and new.generation == old.generation and new.members != old.members:
        yield f"generation {new.generation} changed its members"
    living = [attempt.generation for attempt in after.attempts if attempt.ended is None]
    if len(living) > 1:
        yield f"{len(living)} worlds live at once: generations {', '.join(map(str, living))}"
    if new and after.attempts and after.attempts[-1].generation != new.generation:
        yield f"generation {new.generation} has no attempt"
    if after.restarts.total < before.restarts.total:
        yield f"{before.restarts.total} restarts became {after.restarts.total}"
    yield from _find_gaps(after)
    spent, more = sum(before.goodput.seconds.values()), sum(after.goodput.seconds.values())
    if more < spent - 0.01:
        yield f"{spent:.3f} seconds of the ledger became {more:.3f}"


def _find_gaps(status: TrainingJobStatus) -> Iterator[str]:
    """Yield where the lineage holds a step twice or not at all."""
    end = 0
    for number, span in enumerate(status.lineage):
        if span.first != end + 1:
            yield f"generation {span.generation} begins at step {span.first}, and the one before it ends at {end}"
        if span.last is None and number < len(status.lineage) - 1:
            yield f"generation {span.generation} is open, and a later one has begun"
        end = span.first - 1 if span.last is None else span.last
