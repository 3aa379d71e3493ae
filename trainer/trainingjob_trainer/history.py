"""Which saved steps are part of the history that a world goes on from.

The operator's lineage says which generation trained which steps. It hears of a generation by what its hosts say, so one
may be missing there: when operator and hosts were lost together after it had saved, before the operator could write it
down. Such a generation counts too. What bounds it are those that are recorded after it: they went on from the newest
step that they found, so what it saved before their first step is theirs too, and what it saved from there on is void.

A rollback makes void what its generation, and those before, did after the step that it goes on from, as soon as it is
written down. It leaves samples out. A step carries what was left out before it, so that whoever goes on from it, under
whichever name, trains on no sample twice.
"""

from typing import Protocol

from trainingjob_api.world import ON_STORAGE, World
from trainingjob_trainer.rows import Skipped, skip


class Record(Protocol):
    """Which job, generation and lineage a step was kept by, and which samples it came about without."""

    @property
    def job_uid(self) -> str: ...  # noqa: D102
    @property
    def generation(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def lineage(self) -> int: ...  # noqa: D102
    @property
    def skipped(self) -> Skipped: ...  # noqa: D102


def belongs(record: Record, world: World, *, takeover: bool) -> bool:
    """Return whether a step that was saved, or kept in memory, is part of the history that a world goes on from."""
    step, generation = record.step, record.generation
    if record.job_uid != world.job_uid:
        foreign_restore_point = any(step == span.first - 1 and span.tier in ON_STORAGE for span in world.lineage)
        return takeover and (not world.lineage or foreign_restore_point)
    if any(generation <= rollback.generation and step > rollback.parent for rollback in world.rollbacks):
        return False
    if own := next((span for span in world.lineage if span.generation == generation), None):
        return own.first <= step and (own.last is None or step <= own.last)
    later = (span.first for span in world.lineage if span.generation > generation)
    return generation < world.generation and all(step < first for first in later)


def is_of_known_lineage(record: Record, world: World) -> bool:
    """Return whether a world knows of all rollbacks that a step of its own job came about after, and of no other."""
    before = sum(rollback.generation < record.generation for rollback in world.rollbacks)
    return record.job_uid != world.job_uid or record.lineage == before


def find_skipped(world: World, global_batch_size: int, since: int = 0, skipped: Skipped = ()) -> Skipped:
    """Return the samples that a world leaves out: those that what it goes on from came about without, and more.

    `since` is the generation that it goes on from; 0: from scratch, or from what is of another job.
    """
    for rollback in world.rollbacks:
        if rollback.generation >= since:
            skipped = skip(skipped, rollback.parent, rollback.step, global_batch_size)
    return skipped
