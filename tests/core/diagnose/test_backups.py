"""The second store of checkpoints: copies and failures are reported, and training waits for neither."""

from typing import Any

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, claim, drop_pod, fail, kind, trained
from trainingjob_api.protocol import FailedSave, Phase, Progress
from trainingjob_api.status.progress_status import BackupStatus, FailingSaves
from trainingjob_api.world import Span
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.status_writes import should_write
from trainingjob_operator.core.times import format_time

FULL = FailedSave(step=40, message="host 1 of slice 0: No space left on device")
SAVES = FailedSave(step=44, message="host 0 of slice 0: Stale file handle")
BACKUP = {"uri": "/shared/runs/demo", "backup": {"uri": "/shared/copies/demo"}}
WORDS = (
    "no step can be copied to /shared/copies/demo: host 1 of slice 0: No space left on device. The newest backup is of "
    "step 20. Training and saves continue, and the next backup that is due retries the copy"
)


def copying(**changes: Any) -> Scene:
    """Return a job that saves and copies."""
    return trained(plan=make_plan(checkpoint=BACKUP)).train(step=45, committed=40, **changes)


def conditions_of(scene: Scene) -> list[tuple[str, str, bool]]:
    return [(one.reason, one.message, one.is_warning) for one in scene.happenings()]


def condition(scene: Scene, kind: str) -> tuple[str, str, str]:
    found = next(one for one in scene.status.conditions if one.type == kind)
    return found.status, found.reason, found.message


def test_newest_copy_is_reported_and_kept_in_the_next_world() -> None:
    scene = copying()
    scene.step()
    assert scene.status.backup is None

    before, copied_at = scene.status, format_time(scene.train(step=46, committed=40, copied=40).now)
    scene.step()
    assert scene.status.backup == BackupStatus(step=40, time=copied_at)
    assert should_write(before, scene.status, scene.now)

    scene.step(60.0)
    fail(scene, 0, 0).step()
    scene.train(step=45, restored=40, committed=None, copied=None, failure=None).step()
    assert scene.status.backup == BackupStatus(step=40, time=copied_at)


def test_failing_copies_are_reported_once_and_training_continues() -> None:
    scene = copying(copied=20)
    scene.step()
    before = scene.status

    scene.train(step=46, committed=40, copied=20, failed_copy=FULL)
    begun = format_time(scene.now)
    assert conditions_of(scene) == [("BackupFailing", WORDS, True)]
    assert kind(scene.step()) == (Wait, Reason.TRAINING)

    assert conditions_of(scene) == []
    assert scene.status.failing_copies == FailingSaves(since=begun, step=40, message=FULL.message)
    assert (scene.status.phase, scene.status.display.reason) == ("Degraded", "BackupFailing")
    assert condition(scene, "Degraded") == ("True", "BackupFailing", WORDS)
    assert should_write(before, scene.status, scene.now)


def test_that_another_copy_fails_is_no_reason_to_write() -> None:
    scene = copying(failed_copy=FULL)
    scene.step()
    before = scene.status

    scene.train(step=45, failed_copy=FULL.model_copy(update={"step": 44})).step(9.0)

    assert scene.status.failing_copies
    assert scene.status.failing_copies.step == 44
    assert not should_write(before, scene.status, scene.now)


def test_copies_may_fail_for_as_long_as_they_like() -> None:
    scene = copying(failed_copy=FULL)
    scene.step()

    scene.train(step=46, committed=46, failed_copy=FULL).step(1e5)

    assert kind(scene.decide()) == (Wait, Reason.TRAINING)
    assert "There is no backup yet" in condition(scene, "Degraded")[2]


def test_a_copy_that_succeeds_ends_it() -> None:
    scene = copying(failed_copy=FULL)
    scene.step()

    scene.train(step=60, committed=60, copied=60, failed_copy=None).step(60.0)

    assert scene.status.failing_copies is None
    assert (scene.status.phase, condition(scene, "Degraded")[:2]) == ("Running", ("False", "AllSlices"))


def test_saves_that_fail_are_the_worse_of_the_two() -> None:
    scene = copying(failed_copy=FULL, failed_save=SAVES)

    assert [reason for reason, _, _ in conditions_of(scene)] == ["CheckpointFailing", "BackupFailing"]
    scene.step()

    status, reason, message = condition(scene, "Degraded")
    assert (status, reason) == ("True", "CheckpointFailing")
    assert "Stale file handle" in message
    assert "No space left on device" in message


def test_an_edit_does_not_wait_for_the_backup() -> None:
    scene = copying(failed_copy=FULL)
    scene.step()
    scene.plan = make_plan(checkpoint={**BACKUP, "save": {"everySteps": 777}})

    assert kind(scene.decide()) == (DrainWorld, Reason.EDITED)


def test_a_job_that_copies_its_last_step_does_not_hang() -> None:
    scene = copying()
    scene.announced = scene.listening = 5000.0
    steps = scene.plan.spec.training.steps

    scene.train(step=steps, committed=steps, phase=Phase.SAVING, still=3000.0)

    assert kind(scene.decide()) == (Wait, Reason.TRAINING)


@pytest.mark.parametrize(
    ("progress", "restored"), [(Progress(step=60), 0), (None, 60)], ids=["trained", "ended before the world"]
)
@pytest.mark.parametrize(("committed", "want"), [(60, Wait), (40, Claim)], ids=["copies it", "saves it"])
def test_a_job_that_copies_the_step_at_which_it_stopped_does_not_hang(
    progress: Progress | None, restored: int, committed: int, want: type[object]
) -> None:
    training = {"steps": 100, "globalBatchSize": 16, "sequenceLength": 32}
    stop = {"evaluation": "held-out", "loss": 2.5}
    texts = [{"name": "held-out", "path": "/shared/held-out", "everySteps": 20}]
    plan = make_plan(checkpoint=BACKUP, training={**training, "stopAtLoss": stop}, evaluation=texts)
    scene = trained(plan=plan, announced=5000.0, listening=5000.0)

    changes = {"progress": progress, "restored": restored, "committed": committed}
    scene.hear_slice(0, 1, phase=Phase.SAVING, still=3000.0, **changes)

    assert kind(scene.decide())[0] is want


@pytest.mark.parametrize(
    ("total", "want"), [(100, Wait), (101, Claim), (None, Claim)], ids=["the last", "another", "unknown"]
)
def test_a_job_that_copies_the_last_step_of_its_epochs_does_not_hang(total: int | None, want: type[object]) -> None:
    training = {"epochs": 2, "globalBatchSize": 16, "sequenceLength": 32}
    scene = trained(plan=make_plan(checkpoint=BACKUP, training=training), announced=5000.0, listening=5000.0)

    scene.train(step=100, committed=100, total_steps=total, phase=Phase.SAVING, still=3000.0)

    assert kind(scene.decide())[0] is want


@pytest.mark.parametrize(
    ("checkpoint", "committed"),
    [({"uri": "/shared/runs/demo"}, 100), (BACKUP, 40)],
    ids=["nothing is copied", "the last step is not saved"],
)
def test_other_world_that_stalls_in_a_save_hangs(checkpoint: dict[str, Any], committed: int) -> None:
    scene = trained(plan=make_plan(checkpoint=checkpoint), announced=5000.0, listening=5000.0)
    steps = scene.plan.spec.training.steps

    scene.train(step=steps, committed=min(committed, steps), phase=Phase.SAVING, still=3000.0)

    hung = claim(scene).end
    assert hung
    assert hung.cause.reason == Reason.HUNG_HOST


def restored() -> Scene:
    """Return a job whose second world restored a copy, older than the newest save of the first world."""
    scene = copying(copied=20)
    scene.step()
    fail(scene, 0, 0).step()
    return scene.train(step=21, restored=20, tier="backup", committed=None, copied=None, failure=None)


def test_restored_copy_is_reported() -> None:
    scene = restored()

    assert conditions_of(scene) == [
        (
            "RestoredFromBackup",
            (
                "resumed from step 20 of the backup /shared/copies/demo: /shared/runs/demo "
                "has no intact step that is as new"
            ),
            True,
        )
    ]
    scene.step()
    assert conditions_of(scene) == []
    assert (scene.status.attempts[-1].first_step, scene.status.attempts[-1].tier) == (20, "backup")
    assert scene.status.lineage == (
        Span(generation=1, first=1, last=20),
        Span(generation=2, first=21, tier="backup"),
    )


def test_step_on_the_first_store_is_no_event() -> None:
    scene = copying(copied=20)
    scene.step()
    fail(scene, 0, 0).step()

    scene.train(step=41, restored=40, committed=None, copied=None, failure=None)

    assert conditions_of(scene) == []


def test_restored_copy_becomes_the_newest_checkpoint() -> None:
    scene = restored()
    scene.step()

    assert scene.status.checkpoint
    assert scene.status.checkpoint.step == 20
    drop_pod(scene, 1, 0)
    assert claim(scene).world.committed == 20


def test_a_copy_that_was_restored_is_known_to_be_there() -> None:
    scene = copying()
    fail(scene, 0, 0).step()
    scene.train(step=13, restored=12, tier="backup", committed=None, failure=None).step()

    assert scene.status.backup
    assert scene.status.backup.step == 12
