"""The lineage: which generation trained which steps of the job's one committed history.

A generation that goes on from step s makes everything that earlier ones did after s void. Their checkpoints of those
steps may still be written, by a host that nobody can reach; the lineage is what keeps readers from taking them.
"""

from collections.abc import Sequence

from trainingjob_api.world import Span, Tier

type Lineage = tuple[Span, ...]

MAX_SPANS = 128


def extend(
    lineage: Sequence[Span], generation: int, restored: int, tier: Tier = "durable", unheard: Sequence[Span] = ()
) -> Lineage:
    """Return the lineage after a generation went on from a step that a tier held; the same if that is known.

    `unheard` are worlds before it that led to that step, of which nothing was known so far.
    """
    if any(span.generation >= generation for span in lineage):
        return tuple(lineage)
    led = (span for span in unheard if span.generation < generation and span.first <= restored)
    for span in (*led, Span(generation=generation, first=restored + 1, tier=tier)):
        lineage = _append(lineage, span)
    return tuple(lineage)


def before(lineage: Sequence[Span], generation: int) -> Lineage:
    """Return what a generation may build on."""
    return tuple(span for span in lineage if span.generation < generation)


def _append(lineage: Sequence[Span], span: Span) -> Lineage:
    restored = span.first - 1
    kept = [_close(one, restored) for one in lineage if one.first <= restored]
    # Checkpoints that old are long deleted: only the newest few are kept.
    return (*kept[1 - MAX_SPANS :], span)


def _close(span: Span, restored: int) -> Span:
    last = restored if span.last is None else min(span.last, restored)
    return span.model_copy(update={"last": last})
