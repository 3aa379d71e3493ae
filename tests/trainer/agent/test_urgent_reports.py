"""Which changes of a host's report must be sent at once, and which wait for the next report."""

from tests.support.trainer.scripts import HOST, STARTED, TRAINING, play
from trainingjob_agent.host_report import HostIdentity, is_urgent, make_report
from trainingjob_agent.processes import Vitals
from trainingjob_agent.state import EventReceived
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Phase, Progress

PLACE = HostIdentity(pod="pod", slice=1, host=0, address="10.0.0.2", instance="abc")
PROGRESS = Progress(step=7, loss=2.5)


def test_steps_alone_can_wait_for_the_next_report() -> None:
    before = play(TRAINING)
    stepped = play([(9, EventReceived(1, AgentEvent(progress=PROGRESS)), [])], before)
    committed = play([(9, EventReceived(1, AgentEvent(committed=6)), [])], before)
    old, steps, commit = (make_report(HOST, PLACE, state, port=1) for state in (before, stepped, committed))
    entered = play([(9, EventReceived(1, AgentEvent(entered="batch 2")), [])], before)
    reading, evaluating = (
        make_report(HOST, PLACE, before, port=1, moved_mebibytes=12),
        make_report(HOST, PLACE, entered, port=1),
    )

    assert is_urgent(old, None)
    assert not is_urgent(old, old)
    assert not is_urgent(steps, old)
    assert not is_urgent(reading, old)
    assert reading.moved_mebibytes == 12
    assert (old.stopped, old.cpu_seconds) == (False, None)
    working, stopped = (make_report(HOST, PLACE, before, port=1, vitals=Vitals(on, 7)) for on in (False, True))
    assert not is_urgent(working, old)
    assert working.cpu_seconds == 7
    assert is_urgent(stopped, working)
    assert not is_urgent(evaluating, old)
    assert evaluating.entered == old.entered + 1
    assert is_urgent(commit, old)


def test_a_child_reports_how_much_text_is_tokenized_until_it_connects() -> None:
    half = PreparationProgress(done_bytes=5, total_bytes=10)
    preparing = play([*STARTED, (9, EventReceived(1, AgentEvent(preparation=half)), [])])
    connecting = play([(9, EventReceived(1, AgentEvent(phase=Phase.CONNECTING)), [])], preparing)
    before, report, after = (
        make_report(HOST, PLACE, state, port=1) for state in (play(STARTED), preparing, connecting)
    )

    assert (before.preparation, report.preparation, after.preparation) == (None, half, None)
    assert not is_urgent(report, before)
