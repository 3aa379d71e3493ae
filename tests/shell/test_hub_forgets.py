"""The hub drops entries that only late reports of deleted jobs created."""

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, make_report
from trainingjob_api.protocol import Directive
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.shell.hub import RETENTION_SECONDS, Hub
from trainingjob_operator.shell.interfaces import Caller


def test_late_reports_of_deleted_jobs_leave_nothing_for_long() -> None:
    now = 50.0
    hub = Hub(lambda: now, lambda namespace, name: None)

    for number in range(100):
        late = Caller("pod-0-0", NAMESPACE, NAME, f"deleted-{number}")
        hub.drop_job(late.job_key)
        hub.receive(late, make_report(0, 0))
        now += RETENTION_SECONDS / 10

    received = [number for number in range(100) if hub.heartbeat_state((NAMESPACE, f"deleted-{number}")).latest_reports]
    assert received == list(range(89, 100))


def test_a_new_job_drops_nothing_that_holds_for_others() -> None:
    now = 50.0
    hub = Hub(lambda: now, lambda namespace, name: None)
    hub.publish((NAMESPACE, "announced"), JobDirective(Directive.WAIT))
    hub.retire_generation((NAMESPACE, "burned"), 7)
    hub.pause_job((NAMESPACE, "away"), 3 * RETENTION_SECONDS)
    now += 2 * RETENTION_SECONDS

    hub.receive(Caller("pod-0-0", NAMESPACE, NAME, "new"), make_report(0, 0))

    assert hub.has_published((NAMESPACE, "announced"))
    assert hub.heartbeat_state((NAMESPACE, "burned")).max_unconfirmed_generation == 7
    assert hub.paused_seconds((NAMESPACE, "away")) == RETENTION_SECONDS


def test_reports_of_gone_pods_are_dropped_although_the_directive_stays_the_same() -> None:
    now = 50.0
    hub = Hub(lambda: now, lambda namespace, name: None)
    waiting = JobDirective(Directive.WAIT)

    for number in range(100):
        hub.publish(KEY, waiting)
        hub.receive(Caller(f"pod-{number}", NAMESPACE, NAME, KEY[1]), make_report(0, 0, f"pod-{number}"))
        now += RETENTION_SECONDS / 5

    hub.publish(KEY, waiting)
    assert sorted(hub.heartbeat_state(KEY).latest_reports) == [f"pod-{number}" for number in range(95, 100)]


def test_stale_reports_are_looked_for_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, checks = 50.0, []
    hub = Hub(lambda: now, lambda namespace, name: None)
    hub.publish(KEY, JobDirective(Directive.WAIT))
    drop = hub._drop_stale_pods
    monkeypatch.setattr(hub, "_drop_stale_pods", lambda state: (checks.append(now), drop(state)))

    for _ in range(300):
        now += 0.5
        hub.publish(KEY, JobDirective(Directive.WAIT))
    assert checks == [110.0, 170.0]
