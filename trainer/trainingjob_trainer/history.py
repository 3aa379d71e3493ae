"""Which saved steps are part of the history that a world goes on from.

The operator's lineage says which generation trained which steps. It hears of a generation by what its hosts say, so one
may be missing there: when operator and hosts were lost together after it had saved, before the operator could write it
down. Such a generation counts too. What bounds it are those that are recorded after it: they went on from the newest
step that they found, so what it saved before their first step is theirs too, and what it saved from there on is void.

A rollback makes void what its generation, and those before, did after the step that it goes on from, as soon as it is
written down. It leaves samples out. A step carries what was left out before it, and the batch sizes of the steps up to
it. So whoever goes on from it, under whichever name and with whichever batch size, trains on no sample twice. It also
carries which steps its own generation trained, and those before it that nobody had heard of: whoever goes on from it
tells the operator, and the lineage is whole again.
"""

from collections.abc import Sequence

from trainingjob_api.base import Open
from trainingjob_api.protocol import MAX_UNHEARD
from trainingjob_api.world import ON_STORAGE, Span, Tier, World
from trainingjob_trainer.feeding.rows import Sizes, Skipped, change_size, skip


class Past(Open):
    """How a state came about: the samples that are left out, the batch sizes, and the worlds that trained it.

    Without batch sizes, as older trainers saved it, all steps had that of the job. Of the worlds, `spans` has the last
    one, open, and before it those that were in no lineage which the last one was given.
    """

    skipped: Skipped = ()
    batch_sizes: Sizes = ()
    spans: tuple[Span, ...] = ()


class Record(Past):
    """What is known of a step that is kept: by which job, generation and lineage, of what data and shapes of state.

    `seed` is that of the order of the data; None: an older trainer kept it, or a host in its memory.
    """

    job_uid: str
    generation: int
    step: int
    data: str
    state: str
    seed: int | None = None
    lineage: int = 0

    @property
    def past(self) -> Past:
        """Return how it came about."""
        return Past(skipped=self.skipped, batch_sizes=self.batch_sizes, spans=self.spans)


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


def _find_unheard(spans: Sequence[Span], world: World) -> tuple[Span, ...]:
    """Return which of some spans the lineage of a world lacks."""
    heard = {span.generation for span in world.lineage}
    return tuple(span for span in spans if span.generation not in heard)[-MAX_UNHEARD:]


def go_on(past: Past, world: World, global_batch_size: int, since: int, step: int, tier: Tier) -> Past:
    """Return the past of what a world trains after a step, which has a past itself and was held by a tier.

    `since` is the generation that the world goes on from; 0: from scratch, or from what is of another job.
    """
    skipped = past.skipped
    sizes = change_size(past.batch_sizes, step, global_batch_size)
    for rollback in world.rollbacks:
        if rollback.generation >= since:
            skipped = skip(skipped, rollback.parent, rollback.step, sizes)
    own = Span(generation=world.generation, first=step + 1, tier=tier)
    return Past(skipped=skipped, batch_sizes=sizes, spans=(*(_find_unheard(past.spans, world) if since else ()), own))
