"""The hub keeps no entry for long that only late reports of deleted jobs created."""

from tests.builders import NAME, NAMESPACE, make_report
from trainingjob_api.protocol import Directive
from trainingjob_operator.core.running.telling.announce import Bulletin
from trainingjob_operator.shell.hub import FORGET_SECONDS, Hub
from trainingjob_operator.shell.ports import Caller


def test_late_reports_of_deleted_jobs_leave_nothing_for_long() -> None:
    now = 50.0
    hub = Hub(lambda: now, lambda namespace, name: None)

    for number in range(100):
        late = Caller("pod-0-0", NAMESPACE, NAME, f"deleted-{number}")
        hub.forget(late.job_key)
        hub.receive(late, make_report(0, 0))
        now += FORGET_SECONDS / 10

    heard = [number for number in range(100) if hub.hearing((NAMESPACE, f"deleted-{number}")).news]
    assert heard == list(range(89, 100))


def test_a_new_job_drops_nothing_that_holds_for_others() -> None:
    now = 50.0
    hub = Hub(lambda: now, lambda namespace, name: None)
    hub.publish((NAMESPACE, "announced"), Bulletin(Directive.WAIT))
    hub.burn((NAMESPACE, "burned"), 7)
    hub.leave((NAMESPACE, "away"), 3 * FORGET_SECONDS)
    now += 2 * FORGET_SECONDS

    hub.receive(Caller("pod-0-0", NAMESPACE, NAME, "new"), make_report(0, 0))

    assert hub.has_spoken((NAMESPACE, "announced"))
    assert hub.hearing((NAMESPACE, "burned")).burned == 7
    assert hub.seconds_away((NAMESPACE, "away")) == FORGET_SECONDS
