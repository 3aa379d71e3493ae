"""Stages of retention against a naive model."""

from hypothesis import given
from hypothesis import strategies as st

from trainingjob_api.spec.checkpoint import Keep, KeepStage

STEPS = 40


def list_kept(stages: list[tuple[int, int | None]]) -> set[int]:
    """Return the steps that stages keep, range by range."""
    kept, start = set[int](), 0
    for every, until in stages:
        end = STEPS if until is None else until
        kept |= set(range(every, STEPS * 2, every)) & set(range(start + 1, end + 1))
        start = max(start, end)
    return kept


@st.composite
def stages(draw: st.DrawFn) -> list[tuple[int, int | None]]:
    ends: list[int | None] = [*sorted(draw(st.sets(st.integers(1, STEPS - 1), max_size=4)))]
    if draw(st.booleans()):
        ends.append(None)
    return [(draw(st.integers(1, STEPS)), end) for end in ends]


@given(stages())
def test_stages_keep_the_multiples_in_their_ranges(drawn: list[tuple[int, int | None]]) -> None:
    keep = Keep(stages=tuple(KeepStage(every=every, until=until) for every, until in drawn) or None)

    assert {step for step in range(1, STEPS + 1) if keep.keeps_in_stage(step)} == list_kept(drawn)


def test_without_stages_they_keep_nothing() -> None:
    assert not any(Keep().keeps_in_stage(step) for step in range(1, STEPS))


def test_a_stage_keeps_its_last_step_and_the_next_stage_begins_after_it() -> None:
    keep = Keep(stages=(KeepStage(every=10, until=20), KeepStage(every=15)))

    assert [step for step in range(1, 61) if keep.keeps_in_stage(step)] == [10, 20, 30, 45, 60]
