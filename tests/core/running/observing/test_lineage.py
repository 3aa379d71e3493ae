"""The lineage: what later generations may build on, and how it stays small."""

from trainingjob_api.world import Span
from trainingjob_operator.core.running.observing import lineage


def test_a_lineage_forgets_what_was_never_built_upon() -> None:
    spans = lineage.extend((), 1, 0)
    spans = lineage.extend(spans, 2, 50)
    spans = lineage.extend(spans, 4, 20)

    assert spans == (Span(generation=1, first=1, last=20), Span(generation=4, first=21))
    assert lineage.extend(spans, 4, 30) == spans
    assert lineage.before(spans, 4) == spans[:1]
    assert lineage.extend(spans, 5, 0) == (Span(generation=5, first=1),)
    for generation in range(6, 300):
        spans = lineage.extend(spans, generation, generation * 10)
    assert len(spans) == lineage.MAX_SPANS
