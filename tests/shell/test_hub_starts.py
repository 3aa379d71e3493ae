"""How long a process is stopped, or idle before the first step of its world, as the hub counts it."""

import pytest

from tests.shell.test_hub import Desk
from tests.support.builders import make_report
from trainingjob_api.protocol import Phase, Progress
from trainingjob_operator.shell.hub import OUTAGE_SECONDS


@pytest.fixture
def desk() -> Desk:
    return Desk()


STOPPED: dict[str, dict[str, object]] = {
    "while it connects": {"phase": Phase.CONNECTING},
    "in the first step": {"phase": Phase.TRAINING, "restored": 4},
    "after a step": {"phase": Phase.TRAINING, "restored": 4, "progress": Progress(step=5)},
    "in a save": {"phase": Phase.SAVING, "restored": 4, "progress": Progress(step=5)},
    "before it has joined": {"phase": Phase.FAILED, "progress": Progress(step=5)},
}


@pytest.mark.parametrize("report", STOPPED.values(), ids=STOPPED.keys())
def test_a_stop_counts_from_its_beginning(desk: Desk, report: dict[str, object]) -> None:
    desk.receive(make_report(0, 0, **report))
    desk.now += 2.0
    desk.receive(make_report(0, 0, stopped=True, **report))
    desk.now += 3.0
    desk.receive(make_report(0, 0, stopped=True, **report))

    assert desk.hear().latest_reports["pod-0-0"].stalled_for == 3.0


@pytest.mark.parametrize(
    ("used", "idle"),
    [(4, 2.0), (9, 2.0), (10, 0.0), (25, 0.0), (None, 2.0)],
    ids=["none", "as much as who waits", "some", "much", "not reported"],
)
def test_cpu_time_is_neither_idleness_nor_progress(desk: Desk, used: int | None, idle: float) -> None:
    desk.receive(make_report(0, 0, phase=Phase.COMPILING, cpu_seconds=4))
    desk.now += 2.0
    desk.receive(make_report(0, 0, phase=Phase.COMPILING, cpu_seconds=used))

    news = desk.hear().latest_reports["pod-0-0"]
    assert (news.stalled_for, news.idle_for) == (2.0, idle)


def test_process_with_progress_is_not_idle(desk: Desk) -> None:
    desk.receive(make_report(0, 0, phase=Phase.COMPILING, cpu_seconds=4))
    desk.now += 2.0
    desk.receive(make_report(0, 0, phase=Phase.TRAINING, cpu_seconds=4))

    assert desk.hear().latest_reports["pod-0-0"].idle_for == 0.0


@pytest.mark.parametrize(
    ("pauses", "still"),
    [
        ([1.0] * 300, 300.0),
        ([100.0, 3600.0, 100.0], 3 * OUTAGE_SECONDS),
        ([OUTAGE_SECONDS + 1.0] * 100, 100 * OUTAGE_SECONDS),
        ([1.0, OUTAGE_SECONDS + 1.0] * 60, 60 * (1.0 + OUTAGE_SECONDS)),
    ],
    ids=["without a pause", "the operator was away for an hour", "reports come seldom", "reports come seldom at times"],
)
def test_stall_counts_only_time_with_reports(desk: Desk, pauses: list[float], still: float) -> None:
    desk.receive(make_report(0, 0, phase=Phase.COMPILING))
    for pause in pauses:
        desk.now += pause
        desk.receive(make_report(0, 0, phase=Phase.COMPILING))

    news = desk.hear().latest_reports["pod-0-0"]
    assert (news.stalled_for, news.idle_for) == (pytest.approx(still), pytest.approx(still))
    assert news.report_age == 0.0
