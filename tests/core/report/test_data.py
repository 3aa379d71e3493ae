"""Data reports of the hosts: recorded in the status, with warnings reported once."""

import pytest

from tests.support.scenes import Scene, trained
from trainingjob_api.data_report import DataReport, PreparationProgress, SourceReport
from trainingjob_api.protocol import Phase
from trainingjob_api.status.training_job_status import Condition
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.status_writes import should_write

SOURCE = SourceReport(name="text", files=2, documents=2, characters=300, tokens=302, rows=1, epochs=16.0)
SHORT = "1 row of text; a batch takes 4: 16.0 epochs over 4 steps."
DATA = DataReport(tokens=302, rows=1, epochs=16.0, sources=(SOURCE,), warnings=(SHORT,))


def warnings_of(scene: Scene) -> list[tuple[bool, str]]:
    return [(one.is_warning, one.message) for one in scene.happenings() if one.reason == Reason.UNUSUAL_DATA]


def valid(scene: Scene) -> str:
    return next(one.message for one in scene.status.conditions if one.type == "Valid")


def test_nothing_is_known_before_a_host_reports() -> None:
    assert trained().status.data is None


def test_status_contains_the_data_report_and_the_condition_its_warnings() -> None:
    scene = trained()
    scene.hear_slice(0, 1, data=DATA)

    assert warnings_of(scene) == [(True, SHORT)]
    scene.step(1.0)

    assert scene.status.data == DATA
    assert f"spec.data: {SHORT}" in valid(scene)
    assert warnings_of(scene) == []


def test_it_stays_while_no_host_reports_and_changes_with_the_next_report() -> None:
    scene = trained()
    scene.hear_slice(0, 1, data=DATA).step(1.0)

    scene.hear_slice(0, 1, data=None).step(1.0)
    assert scene.status.data == DATA

    fewer = DATA.model_copy(update={"warnings": ()})
    scene.hear_slice(0, 1, data=fewer).step(1.0)
    assert scene.status.data == fewer
    assert SHORT not in valid(scene)
    assert warnings_of(scene) == []


BEGUN = PreparationProgress(done_bytes=0, total_bytes=4_000_000_000)
HALF = PreparationProgress(
    done_bytes=2_000_000_000,
    total_bytes=4_000_000_000,
    documents=1200,
    tokens=500_000_000,
    tokens_per_second=1e6,
    eta_seconds=500,
)
TEXTS = {
    "begun": (BEGUN, "tokenizing the text: 0 B of 4 GB (0%), 0 documents, 0 tokens"),
    "half": (
        HALF,
        "tokenizing the text: 2 GB of 4 GB (50%), 1.2 k documents, 500 M tokens, 1 M tokens/s, done in about 8 m 20 s",
    ),
    "empty files": (
        PreparationProgress(done_bytes=0, total_bytes=0),
        "tokenizing the text: 0 B of 0 B (100%), 0 documents, 0 tokens",
    ),
}


def running(scene: Scene) -> Condition:
    return next(one for one in scene.status.conditions if one.type == "Running")


def preparing(progress: PreparationProgress) -> Scene:
    """Return a job whose first world tokenizes the text."""
    scene = Scene().place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    scene.step()
    scene.train(step=0, restored=None, progress=None, phase=Phase.PREPARING).hear(0, 0, preparation=progress)
    scene.step(1.0)
    return scene


@pytest.mark.parametrize(("progress", "text"), TEXTS.values(), ids=TEXTS)
def test_the_condition_shows_how_much_text_is_tokenized(progress: PreparationProgress, text: str) -> None:
    scene = preparing(progress)

    assert (running(scene).reason, running(scene).message) == (Reason.PREPARING, text)
    assert (scene.status.preparation, scene.status.phase) == (progress, "Starting")
    assert scene.status.goodput.current == "preparing"


def test_the_progress_of_the_preparation_ends_with_it() -> None:
    scene = preparing(HALF).hear_slice(0, 1, preparation=None, phase=Phase.COMPILING)
    scene.step(1.0)

    assert (scene.status.preparation, running(scene).reason) == (None, Reason.JOINING)


def test_the_progress_of_the_preparation_is_written_every_ten_seconds() -> None:
    scene = preparing(BEGUN)
    before = scene.status
    scene.hear(0, 0, preparation=HALF).step(1.0)
    soon, written = scene.status, should_write(before, scene.status, scene.now)
    scene.step(9.0)

    assert (soon.preparation, written) == (HALF, False)
    assert should_write(before, scene.status, scene.now)
