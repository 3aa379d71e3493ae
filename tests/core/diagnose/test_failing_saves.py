"""A world that cannot save: it keeps training, reports the failure, and avoids actions that would lose its steps."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import make_plan, pod_manifest
from tests.support.scenes import Scene, claim, fail, kind, trained
from trainingjob_api.protocol import FailedSave, Phase
from trainingjob_api.status.progress_status import FailingSaves
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, EndWorld, Fail, Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.status_writes import should_write
from trainingjob_operator.core.times import format_time

FULL = FailedSave(step=40, message="host 1 of slice 0: No space left on device")
WORDS = (
    "no step can be saved: host 1 of slice 0: No space left on device. A failure now would lose 25 steps since step "
    "20. Training continues and retries the save until 2026-11-21 13:00:00 UTC; then the job fails"
)


def failing(scene: Scene | None = None, **changes: Any) -> Scene:
    """Return a job that has saved step 20, trains at step 45 and could not save step 40."""
    scene = scene or trained()
    return scene.train(step=45, committed=20, **{"failed_save": FULL, **changes})


def condition(scene: Scene, kind: str) -> tuple[str, str, str]:
    found = next(one for one in scene.status.conditions if one.type == kind)
    return found.status, found.reason, found.message


def test_failing_save_is_reported_once_and_training_continues() -> None:
    scene = failing()
    before, begun = scene.status, format_time(scene.now)

    reported = [(one.reason, one.message, one.is_warning) for one in scene.happenings()]
    assert kind(scene.step()) == (Wait, Reason.TRAINING)

    assert reported == [("CheckpointFailing", WORDS, True)]
    assert scene.happenings() == ()
    assert scene.status.failing_saves == FailingSaves(since=begun, step=40, message=FULL.message)
    assert (scene.status.phase, scene.status.display.reason) == ("Degraded", "CheckpointFailing")
    assert condition(scene, "Degraded") == ("True", "CheckpointFailing", WORDS)
    assert condition(scene, "Running")[:2] == ("True", "CheckpointFailing")
    assert should_write(before, scene.status, scene.now)


def test_another_failing_step_neither_writes_the_status_nor_restarts() -> None:
    scene = failing()
    scene.step()
    before = scene.status

    scene.train(step=46, failed_save=FailedSave(step=46, message="host 1 of slice 0: Input/output error")).step(9.0)

    assert scene.status.failing_saves
    assert before.failing_saves
    assert scene.status.failing_saves.since == before.failing_saves.since
    assert scene.status.failing_saves.step == 46
    assert not should_write(before, scene.status, scene.now)


def test_a_saved_step_ends_it() -> None:
    scene = failing()
    scene.step()

    scene.train(step=60, committed=60, failed_save=None).step(60.0)

    assert scene.status.failing_saves is None
    assert (scene.status.phase, condition(scene, "Degraded")[:2]) == ("Running", ("False", "AllSlices"))


def test_failing_saves_and_missing_slices_are_both_reported() -> None:
    scene = Scene(plan=make_plan(1, 2)).form(0)

    failing(scene).step()

    status, reason, message = condition(scene, "Degraded")
    assert (status, reason) == ("True", "CheckpointFailing")
    assert "No space left on device" in message
    assert "slice 1" in message
    assert "training on 1 of 2 slices" in condition(scene, "Running")[2]


def test_draining_world_reports_failing_saves() -> None:
    scene = failing().delete_pod(1, 0)

    scene.step()

    assert scene.status.phase == "Resizing"
    assert condition(scene, "Degraded") == ("True", "CheckpointFailing", WORDS)


def test_the_next_world_begins_with_a_clean_sheet() -> None:
    scene = failing()
    scene.step()

    fail(scene, 0, 0)
    scene.step(1.0)
    assert condition(scene, "Degraded")[1] != Reason.CHECKPOINT_FAILING
    scene.train(step=25, restored=20, committed=None, failed_save=None, failure=None)
    scene.step(7200.0)

    assert scene.status.failing_saves is None
    assert kind(scene.decide()) == (Wait, Reason.TRAINING)


def known(scene: Scene, seconds: float) -> Scene:
    """Return a scene after its saves have failed for some time."""
    failing(scene).step()
    scene.now += timedelta(seconds=seconds)
    return scene


def edited(scene: Scene) -> Scene:
    scene.plan = make_plan(checkpoint={"uri": "/shared/runs/demo", "save": {"everySteps": 777}})
    return scene


def suspended(scene: Scene) -> Scene:
    scene.plan = make_plan(suspend=True)
    return scene


def grown() -> Scene:
    scene = Scene().form(0, 1).silence(1).hear_slice(0, still=6.0)
    assert isinstance(scene.step(), Claim)
    scene.train(step=20, restored=10)
    scene.step(1.0)
    for host in range(2):
        scene.pods[1, host] = pod_manifest(scene.plan, 1, host, uid=f"new-1-{host}")
        scene.hear(1, host)
    assert kind(scene.decide()) == (DrainWorld, Reason.GROWING)
    return scene


DECISIONS: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "an edit waits until a step can be saved": (lambda: edited(known(trained(), 60)), (Wait, Reason.TRAINING)),
    "a growth waits": (lambda: failing(grown()), (Wait, Reason.TRAINING)),
    "a drain does not: the pod goes in any case": (
        lambda: known(trained(), 60).delete_pod(1, 0),
        (DrainWorld, Reason.DRAINING),
    ),
    "a suspension waits a little": (lambda: suspended(known(trained(), 60)), (DrainWorld, Reason.SUSPENDING)),
    "a suspension does not wait for ever": (lambda: suspended(known(trained(), 301)), (EndWorld, Reason.SUSPENDED)),
    "for as long as the spec bears": (lambda: known(trained(), 3600), (Wait, Reason.TRAINING)),
    "for longer": (lambda: known(trained(), 3601), (Fail, Reason.CHECKPOINT_FAILING)),
    "for longer than a shorter bound": (
        lambda: known(trained(plan=make_plan(checkpoint={"uri": "/shared/runs/demo", "failAfter": "1m"})), 61),
        (Fail, Reason.CHECKPOINT_FAILING),
    ),
    "all steps are trained and the last one is tried again and again: no hang": (
        lambda: known(trained(), 60).train(step=100, phase=Phase.SAVING, still=3000.0),
        (Wait, Reason.TRAINING),
    ),
}


@pytest.mark.parametrize(("scene", "want"), DECISIONS.values(), ids=DECISIONS.keys())
def test_decisions_while_saves_fail(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def test_failed_job_reports_the_lost_steps() -> None:
    scene = known(trained(), 3601)

    scene.step()

    words = (
        "no checkpoint has succeeded for 1 h 0 m (limit: `spec.checkpoint.failAfter`): host 1 of slice 0: No "
        "space left on device. 25 steps since step 20 are lost"
    )
    status, reason, message = condition(scene, "Failed")
    assert (status, reason, message.splitlines()[0]) == ("True", "CheckpointFailing", words)
    assert message.splitlines()[1].startswith("To resume from step 20, ")


def test_suspension_without_a_save_reports_the_reason() -> None:
    scene = suspended(known(trained(), 301))

    scene.step()

    assert scene.status.attempts[-1].cause
    assert scene.status.attempts[-1].cause.message == (
        "suspended without a save: saves have failed for 5 m 1 s. 25 steps since step 20 are lost"
    )


def test_next_claim_contains_the_newest_saved_step() -> None:
    assert claim(fail(known(trained(), 60), 0, 0)).world.committed == 20
