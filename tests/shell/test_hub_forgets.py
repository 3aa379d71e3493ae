"""The hub drops entries that only late reports of deleted jobs created."""

from tests.support.builders import NAME, NAMESPACE, make_report
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
