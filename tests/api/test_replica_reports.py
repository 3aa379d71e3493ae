"""Reports of replicas: which of them train a round, so that the other replicas wait for their deltas."""

import pytest

from tests.support.builders import make_report
from trainingjob_api.protocol import STARTUP_PHASES, Answer, Directive, HostReport, Phase, Progress


def report_in(phase: Phase, step: int | None) -> HostReport:
    """Return the report of a host that restored step 36. `step`: its newest step since then, if any."""
    progress = None if step is None else Progress(step=step)
    return make_report(phase=phase, restored=36, progress=progress)


@pytest.mark.parametrize("phase", [Phase.SYNCHRONIZING, Phase.EVALUATING, Phase.SAVING])
def test_a_replica_is_in_a_round_once_it_trains(phase: Phase) -> None:
    assert not report_in(phase, None).is_in_round
    assert not report_in(phase, 36).is_in_round
    assert report_in(Phase.TRAINING, None).is_in_round
    assert report_in(phase, 37).is_in_round


@pytest.mark.parametrize("phase", [*sorted(STARTUP_PHASES), Phase.IDLE, Phase.LEFT, Phase.DONE, Phase.FAILED])
def test_a_replica_that_starts_or_has_ended_is_in_no_round(phase: Phase) -> None:
    assert not report_in(phase, 72).is_in_round


def test_no_live_slices_differ_from_unknown_ones() -> None:
    answer = Answer(directive=Directive.TRAIN, live_slices=())
    assert Answer.model_validate_json(answer.model_dump_json(by_alias=True)).live_slices == ()
    assert Answer.model_validate_json('{"directive": "train"}').live_slices is None
