"""Lineage: which generation trained which steps of the job's one committed history.

A generation that resumes from step s invalidates all later steps of earlier generations. A host that is unreachable may
still write checkpoints of those steps. Readers use the lineage to reject them.
"""

from collections.abc import Sequence

from trainingjob_api.world import Span, Tier

type Lineage = tuple[Span, ...]

MAX_SPANS = 128


def extend_lineage(
    lineage: Sequence[Span],
    generation: int,
    restored: int,
    tier: Tier = "durable",
    missing_lineage: Sequence[Span] = (),
) -> Lineage:
    """Return the lineage after a generation resumed from a step in a tier; unchanged if that is already recorded.

    `missing_lineage` are earlier generations that led to that step and are missing in the lineage.
    """
    if any(span.generation >= generation for span in lineage):
        return tuple(lineage)
    missing_spans = (span for span in missing_lineage if span.generation < generation and span.first <= restored)
    for span in (*missing_spans, Span(generation=generation, first=restored + 1, tier=tier)):
        lineage = _append_span(lineage, span)
    return tuple(lineage)


def lineage_before(lineage: Sequence[Span], generation: int) -> Lineage:
    """Return the part of the lineage that a generation may restore from."""
    return tuple(span for span in lineage if span.generation < generation)


def _append_span(lineage: Sequence[Span], span: Span) -> Lineage:
    restored = span.first - 1
    closed_spans = [_close_span(earlier_span, restored) for earlier_span in lineage if earlier_span.first <= restored]
    # Older spans can be dropped: their checkpoints are deleted, only the newest few are kept.
    return (*closed_spans[1 - MAX_SPANS :], span)


def _close_span(span: Span, restored: int) -> Span:
    last = restored if span.last is None else min(span.last, restored)
    return span.model_copy(update={"last": last})
