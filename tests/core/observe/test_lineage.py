"""The lineage: what later generations may build on, and how it stays small."""

from trainingjob_api.world import Span
from trainingjob_operator.core.observe import lineage


def test_lineage_drops_abandoned_worlds() -> None:
    spans = lineage.extend_lineage((), 1, 0)
    spans = lineage.extend_lineage(spans, 2, 50)
    spans = lineage.extend_lineage(spans, 4, 20)

    assert spans == (Span(generation=1, first=1, last=20), Span(generation=4, first=21))
    assert lineage.extend_lineage(spans, 4, 30) == spans
    assert lineage.lineage_before(spans, 4) == spans[:1]
    assert lineage.extend_lineage(spans, 5, 0) == (Span(generation=5, first=1),)
    for generation in range(6, 300):
        spans = lineage.extend_lineage(spans, generation, generation * 10)
    assert len(spans) == lineage.MAX_SPANS


def test_unreported_worlds_enter_the_lineage_by_the_report_of_a_later_world() -> None:
    known = lineage.extend_lineage((), 1, 0)
    unheard = (Span(generation=2, first=11, tier="ram"), Span(generation=3, first=21))
    want = (
        Span(generation=1, first=1, last=10),
        Span(generation=2, first=11, last=20, tier="ram"),
        Span(generation=3, first=21, last=30),
        Span(generation=5, first=31),
    )

    reported = lineage.extend_lineage(known, 5, 30, missing_lineage=unheard)

    assert reported == want
    assert lineage.extend_lineage(reported, 5, 30, missing_lineage=unheard) == reported


def test_spans_that_cannot_precede_a_step_are_in_no_lineage() -> None:
    known = lineage.extend_lineage((), 1, 0)

    reported = lineage.extend_lineage(
        known, 5, 30, missing_lineage=(Span(generation=2, first=31), Span(generation=7, first=11))
    )

    assert reported == (Span(generation=1, first=1, last=30), Span(generation=5, first=31))


def test_unreported_world_invalidates_steps_after_its_start() -> None:
    """The newest saved step of generation 6 is damaged, and generation 5, which it did not build on, has the next."""
    known = (Span(generation=4, first=1, last=87), Span(generation=6, first=88))

    reported = lineage.extend_lineage(known, 7, 70, missing_lineage=(Span(generation=5, first=61),))

    assert reported == (
        Span(generation=4, first=1, last=60),
        Span(generation=5, first=61, last=70),
        Span(generation=7, first=71),
    )
