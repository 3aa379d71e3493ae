"""Exports of kept checkpoints: the newest and failures are reported, and training waits for neither."""

from typing import Any

import pytest

from tests.core.diagnose.test_backups import condition, conditions_of
from tests.support.builders import make_plan
from tests.support.scenes import Scene, fail, kind, trained
from trainingjob_api.protocol import FailedSave, Phase
from trainingjob_api.status.progress_status import ExportStatus, FailingSaves
from trainingjob_operator.core.decide.decisions import Claim, Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.status_writes import should_write
from trainingjob_operator.core.times import format_time

FULL = FailedSave(step=40, message="host 1 of slice 0: No space left on device")
EXPORT = {"uri": "/shared/runs/demo", "export": {"huggingFace": {"uri": "/shared/exports/demo", "when": "kept"}}}
WORDS = (
    "no step can be exported to /shared/exports/demo: host 1 of slice 0: No space left on device. The newest export is "
    "of step 20. Training and saves continue, and the next save retries the export"
)


def exporting(**changes: Any) -> Scene:
    """Return a job that saves and exports."""
    return trained(plan=make_plan(checkpoint=EXPORT)).train(step=45, committed=40, **changes)


def test_newest_export_is_reported_and_kept_in_the_next_world() -> None:
    scene = exporting()
    scene.step()
    assert scene.status.export is None

    before, exported_at = scene.status, format_time(scene.train(step=46, committed=40, exported=40).now)
    scene.step()
    assert scene.status.export == ExportStatus(step=40, time=exported_at)
    assert should_write(before, scene.status, scene.now)

    scene.step(60.0)
    fail(scene, 0, 0).step()
    scene.train(step=45, restored=40, committed=None, exported=None, failure=None).step()
    assert scene.status.export == ExportStatus(step=40, time=exported_at)


def test_failing_exports_are_reported_once_and_training_continues() -> None:
    scene = exporting(exported=20)
    scene.step()

    scene.train(step=46, committed=40, exported=20, failed_export=FULL)
    begun = format_time(scene.now)
    assert conditions_of(scene) == [("ExportFailing", WORDS, True)]
    assert kind(scene.step()) == (Wait, Reason.TRAINING)

    assert conditions_of(scene) == []
    assert scene.status.failing_exports == FailingSaves(since=begun, step=40, message=FULL.message)
    assert condition(scene, "Degraded") == ("True", "ExportFailing", WORDS)

    scene.train(step=60, committed=60, exported=60, failed_export=None).step(60.0)
    assert scene.status.failing_exports is None


def test_a_first_export_that_fails_has_no_earlier_one() -> None:
    scene = exporting(failed_export=FULL)

    assert "There is no export yet" in conditions_of(scene)[0][1]


@pytest.mark.parametrize(
    ("reports", "want"),
    [
        ({"committed": 100}, Wait),
        ({"restored": 100}, Wait),
        ({"committed": 40, "restored": 100}, Claim),
        ({"committed": 40}, Claim),
    ],
    ids=["saved it", "restored it", "saves an earlier step", "saves it"],
)
def test_a_job_that_exports_its_last_step_does_not_hang(reports: dict[str, int], want: type[object]) -> None:
    scene = trained(plan=make_plan(checkpoint=EXPORT), announced=5000.0, listening=5000.0)
    assert scene.plan.spec.training.steps == 100

    scene.train(step=100, phase=Phase.SAVING, still=3000.0, **reports)

    assert kind(scene.decide())[0] is want


def test_an_export_of_the_last_step_alone_may_hang() -> None:
    export = {"huggingFace": {"uri": "/shared/exports/demo"}}
    plan = make_plan(checkpoint={"uri": "/shared/runs/demo", "export": export})
    scene = trained(plan=plan, announced=5000.0, listening=5000.0)

    scene.train(step=100, committed=100, phase=Phase.SAVING, still=3000.0)

    assert kind(scene.decide())[0] is Claim
