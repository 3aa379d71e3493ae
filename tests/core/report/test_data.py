"""Data reports of the hosts: recorded in the status, with warnings reported once."""

from tests.support.scenes import Scene, trained
from trainingjob_api.data_report import DataReport, SourceReport
from trainingjob_operator.core.reasons import Reason

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
