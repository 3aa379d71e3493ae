"""The timeline of worlds: where each began and how far it came, also where that is known only afterwards."""

from datetime import UTC, datetime

import pytest

from tests.support.builders import UID, make_report
from trainingjob_api.status.world_status import Attempt, Cause
from trainingjob_api.world import Member, Span, World
from trainingjob_operator.core.observe.heartbeats import LatestReport
from trainingjob_operator.core.observe.members import MemberView
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.attempts import update_attempts

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MEMBER = Member(process=0, slice=0, host=0, pod="p", pod_uid="u", address="10.0.0.1")
WORLD = World(generation=4, job_uid=UID, coordinator="10.0.0.1:5000", members=(MEMBER,))
TRAINED = Attempt(generation=1, slices=1, started="t", first_step=0, last_step=12)
FAR = TRAINED.model_copy(update={"last_step": 45})


def silent(generation: int) -> Attempt:
    return Attempt(generation=generation, slices=1, started="t")


SECOND = Span(generation=2, first=11, tier="ram")
THIRD = Span(generation=3, first=21)
SCRATCH = Span(generation=2, first=1)
type Row = tuple[int, int | None, int | None, int | None, str | None]
"""Generation, first and last step, lost steps, tier."""
CASES: dict[str, tuple[tuple[Attempt, ...], tuple[Span, ...], list[Row]]] = {
    "all are known": ((TRAINED,), (), [(1, 0, 30, None, None), (4, 30, 30, 0, "ram")]),
    "one between was lost before anybody heard of it": (
        (TRAINED, silent(2)),
        (SECOND,),
        [(1, 0, 12, None, None), (2, 10, 30, 2, "ram"), (4, 30, 30, 0, "ram")],
    ),
    "two between were": (
        (TRAINED, silent(2), silent(3)),
        (SECOND, THIRD),
        [(1, 0, 12, None, None), (2, 10, 20, 2, "ram"), (3, 20, 30, 0, "durable"), (4, 30, 30, 0, "ram")],
    ),
    "the first of all was": ((silent(2),), (SCRATCH,), [(2, 0, 30, None, None), (4, 30, 30, 0, "ram")]),
    "one that is in no attempt any more": (
        (TRAINED,),
        (SECOND,),
        [(1, 0, 30, None, None), (4, 30, 30, 0, "ram")],
    ),
    "one that nothing goes on from": (
        (TRAINED, silent(2)),
        (),
        [(1, 0, 30, None, None), (2, None, None, None, None), (4, 30, 30, 0, "ram")],
    ),
    "two that died before they restored, and some steps are lost": (
        (FAR, silent(2), silent(3)),
        (),
        [(1, 0, 45, None, None), (2, None, None, None, None), (3, None, None, None, None), (4, 30, 30, 15, "ram")],
    ),
}


@pytest.mark.parametrize(("before", "unheard", "want"), CASES.values(), ids=CASES.keys())
def test_first_and_last_step_of_each_attempt(
    before: tuple[Attempt, ...], unheard: tuple[Span, ...], want: list[Row]
) -> None:
    report = make_report(generation=4, restored=30, tier="ram", missing_lineage=unheard)
    seat = MemberView(MEMBER, None, LatestReport(report, 0.1, 0.1), 4)

    attempts = update_attempts((*before, silent(4)), WORLD, [seat], NOW)

    reported = [(one.generation, one.first_step, one.last_step, one.lost_steps, one.tier) for one in attempts]
    assert reported == want
    assert update_attempts(attempts, WORLD, [seat], NOW) == attempts


def test_long_messages_of_a_status_are_cut_off() -> None:
    """Kueue's reason for an eviction can have any length, and must not keep a job from its next world."""
    cause = Cause(reason=Reason.RESIZED, message="slice 1 is removed: " + "a" * 2000)

    assert cause.message == "slice 1 is removed: " + "a" * 1004
