"""Which saved steps are part of the history that a world goes on from.

The operator's lineage says which generation trained which steps. It hears of a generation by what its hosts say, so one
may be missing there: when operator and hosts were lost together after it had saved, before the operator could write it
down. Such a generation counts too. What bounds it are those that are recorded after it: they went on from the newest
step that they found, so what it saved before their first step is theirs too, and what it saved from there on is void.
"""

from typing import Protocol

from trainingjob_api.world import World


class Record(Protocol):
    """Which job and generation a step was kept by."""

    @property
    def job_uid(self) -> str: ...  # noqa: D102
    @property
    def generation(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102


def belongs(record: Record, world: World, *, takeover: bool) -> bool:
    """Return whether a step that was saved, or kept in memory, is part of the history that a world goes on from."""
    step, generation = record.step, record.generation
    if record.job_uid != world.job_uid:
        foreign_restore_point = any(step == span.first - 1 and span.tier == "durable" for span in world.lineage)
        return takeover and (not world.lineage or foreign_restore_point)
    if own := next((span for span in world.lineage if span.generation == generation), None):
        return own.first <= step and (own.last is None or step <= own.last)
    later = (span.first for span in world.lineage if span.generation > generation)
    return generation < world.generation and all(step < first for first in later)
