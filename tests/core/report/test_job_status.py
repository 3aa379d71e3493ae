"""The status after each phase of a job: what users read, and the state that the operator keeps."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.builders import NOW, make_plan
from tests.support.replica_scenes import ReplicaScene, replicated
from tests.support.scenes import Scene, edited, trained
from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.training_job_status import Condition, TrainingJobStatus
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.conditions import CONDITION_TYPES
from trainingjob_operator.core.report.job_status import blocked_status, invalid_status, next_status
from trainingjob_operator.core.times import format_time

SILENCE = HeartbeatState()


def by_type(status: TrainingJobStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


def truth(status: TrainingJobStatus) -> dict[str, tuple[str, str]]:
    return {kind: (one.status, one.reason) for kind, one in by_type(status).items()}


def test_a_world_that_trains() -> None:
    status = trained().status

    assert truth(status) == {
        "Valid": ("True", "Valid"),
        "Queued": ("False", "PodsScheduled"),
        "Running": ("True", "Training"),
        "Degraded": ("False", "AllSlices"),
        "Suspended": ("False", "NotSuspended"),
        "Succeeded": ("Unknown", "NotFinished"),
        "Failed": ("False", "NotFinished"),
    }
    assert by_type(status)["Running"].message == "training on 2 slices"
    assert status.phase == "Running"
    assert status.display.model_dump() == {
        "slices": "2/2",
        "step": "10/100",
        "loss": "2.5",
        "goodput": "",
        "mesh": "dcn data=2 · ici fsdp=4",
        "tokens_per_second": "1 k",
        "eta": "45 s",
        "checkpoint": "",
        "reason": "Training",
    }
    assert status.plan
    assert [size.valid for size in status.plan.sizes] == [True, True]
    assert status.world
    assert status.world.pods[0].endswith("/pod-0-0")
    assert status.world.why == "2 slices ready"


def test_slices_that_cannot_be_released_are_reported_with_advice() -> None:
    scene = edited(Scene(plan=make_plan(2, 2)).form(0, 1), 1, 1)
    scene.step()

    reported = by_type(scene.status)["Valid"].message.splitlines()[1:]
    assert reported == [
        (
            "spec.slices: JobSet demo-666ff holds 2 slices and cannot shrink while the job runs, so 1 slice above the "
            "maximum cannot be released. Set spec.suspend to true, and to false once the pods are gone"
        )
    ]


NOTHING_IDLE: dict[str, Callable[[], Scene]] = {
    "nothing is there": lambda: edited(Scene(plan=make_plan(2, 2)), 1, 1),
    "the minimum alone is lower": lambda: edited(Scene(plan=make_plan(2, 2)).form(0, 1), 1, 2),
    "slices above the minimum go by themselves": lambda: edited(trained(), 1, 1),
    "it is suspended": lambda: edited(Scene(plan=make_plan(2, 2)).form(0, 1), 1, 1, suspend=True),
}


@pytest.mark.parametrize("scene", NOTHING_IDLE.values(), ids=NOTHING_IDLE.keys())
def test_nothing_is_idle_where_all_can_be_used_or_given_back(scene: Callable[[], Scene]) -> None:
    at = scene()
    at.step()

    assert "given back" not in by_type(at.status)["Valid"].message


def test_illegal_size_reports_the_reason() -> None:
    scene = Scene(plan=make_plan(1, 2, allowed=(1,))).form(0)

    assert scene.status.plan
    assert (scene.status.plan.sizes[1].valid, scene.status.plan.sizes[1].why) == (False, "does not divide")
    assert scene.status.display.slices == "1/1"


def test_condition_keeps_its_transition_time_until_it_changes() -> None:
    scene = trained()
    first = by_type(scene.status)
    scene.train(step=11)
    scene.step(60.0)
    later = by_type(scene.status)
    scene.hear_slice(0, 1, phase=Phase.DONE)
    scene.step(60.0)

    assert later["Running"].last_transition_time == first["Running"].last_transition_time
    ended = by_type(scene.status)
    assert ended["Running"].last_transition_time == format_time(NOW + timedelta(minutes=2))
    assert (ended["Succeeded"].status, ended["Failed"].status) == ("True", "False")
    assert scene.status.completion_time == format_time(NOW + timedelta(minutes=2))
    assert scene.status.attempts[-1].cause
    assert scene.status.attempts[-1].cause.reason == "Completed"
    assert not scene.status.attempts[-1].restarted


def test_nothing_changes_after_the_end() -> None:
    scene = trained().hear_slice(0, 1, phase=Phase.DONE)
    scene.step()
    ended = scene.status
    scene.step(3600.0)

    assert scene.status == ended


def test_world_with_some_completed_hosts_still_trains() -> None:
    scene = trained()
    scene.hear_slice(0, phase=Phase.DONE)
    scene.hear_slice(1, phase=Phase.SAVING)
    scene.step(2.0)
    scene.hear_slice(1, phase=Phase.LEFT)
    scene.hear(1, 1, phase=Phase.TRAINING)
    scene.step(2.0)

    assert scene.status.phase == "Running"
    assert scene.status.goodput.seconds == {"training": 2.0, "saving": 2.0}


@pytest.mark.parametrize(
    ("cause", "phase", "bucket"),
    [("lost", "Recovering", "recovering"), ("left", "Resizing", "resizing"), ("suspended", "Starting", "starting")],
)
def test_phase_of_a_forming_world_depends_on_the_previous_one(cause: str, phase: str, bucket: str) -> None:
    scene = trained()
    if cause == "lost":
        scene.plan = make_plan(2, 2)
        scene.silence(1).hear_slice(0, still=6.0)
        scene.step()
        assert scene.status.phase == "Recovering"
    elif cause == "left":
        scene.hear_slice(0, 1, phase=Phase.LEFT)
    else:
        scene.plan = make_plan(suspend=True)
        scene.hear_slice(0, 1, phase=Phase.LEFT)
        scene.step()
        scene.plan = make_plan()
    if cause != "left":
        scene.hear_slice(0, 1, phase=Phase.IDLE, still=100.0)

    scene.step(1.0)
    assert scene.status.phase == phase
    scene.step(1.0)
    assert (scene.status.phase, scene.status.goodput.current) == (phase, bucket)
    assert truth(scene.status)["Running"] == ("False", "Joining")


def test_status_stays_while_a_new_operator_waits_for_heartbeats() -> None:
    scene = trained()
    scene.news.clear()
    wait = Wait(Reason.WAITING_FOR_HEARTBEATS, "")

    assert next_status(scene.plan, scene.see(), wait, scene.now) == scene.status


def test_a_spec_that_cannot_be_planned() -> None:
    status = invalid_status(TrainingJobStatus(), ["spec.model: is missing.", "spec.data: is missing."], SILENCE, 3, NOW)

    assert status.phase == "Invalid"
    assert [one.type for one in status.conditions if one.status == "Unknown"] == [
        k for k in CONDITION_TYPES if k != "Valid"
    ]
    valid = by_type(status)["Valid"]
    assert (valid.status, valid.reason, valid.observed_generation) == ("False", "InvalidSpec", 3)
    assert valid.message == "2 problems:\nspec.model: is missing.\nspec.data: is missing."
    assert status.problems == ("spec.model: is missing.", "spec.data: is missing.")


def test_invalid_spec_is_reported_while_the_world_runs() -> None:
    running = trained().status

    status = invalid_status(running, ["spec.elastic.maxRestarts: must be at least 0."], SILENCE, 2, NOW)

    assert status.phase == "Running"
    assert truth(status)["Running"] == ("True", "Training")
    assert truth(status)["Valid"] == ("False", "InvalidSpec")


@pytest.mark.parametrize("kind", ["invalid", "blocked"])
def test_steps_of_a_world_are_shown_without_a_decision(kind: str) -> None:
    """Else the job would seem to make no progress."""
    scene = trained()
    scene.hear_slice(
        0, 1, committed=30, progress=Progress(step=31, loss=1.25, tokens_per_second=2000.0, step_seconds=2.0)
    )
    if kind == "invalid":
        status = invalid_status(scene.status, ["spec.model: is missing."], scene.heartbeats(), 2, NOW)
    else:
        status = blocked_status(scene.status, "JobSetMissing", "install it", scene.heartbeats(), 1, NOW)

    assert status.progress
    assert (status.progress.step, status.progress.of, status.progress.percent) == (31, 100, 31.0)
    assert (status.display.step, status.display.loss, status.display.tokens_per_second) == ("31/100", "1.25", "2 k")
    assert status.checkpoint
    assert (status.checkpoint.step, status.display.checkpoint, status.display.eta) == (30, "30", "2 m 18 s")
    assert (status.display.slices, status.display.mesh) == (scene.status.display.slices, scene.status.display.mesh)


def test_reports_of_a_former_world_are_no_progress() -> None:
    scene = trained()
    scene.hear_slice(0, 1, progress=Progress(step=31), committed=31, generation=7)

    invalid = invalid_status(scene.status, [], scene.heartbeats(), 2, NOW)

    assert (invalid.progress, invalid.checkpoint) == (scene.status.progress, scene.status.checkpoint)


def test_first_steps_are_shown_without_a_plan() -> None:
    scene = trained()
    status = scene.status.model_copy(update={"progress": None})
    scene.hear_slice(0, 1, progress=Progress(step=3))

    invalid = invalid_status(status, [], scene.heartbeats(), 2, NOW)

    assert invalid.progress
    assert (invalid.progress.step, invalid.display.step) == (3, "3/?")


def test_newest_step_of_replicas_is_shown_without_a_plan() -> None:
    scene = ReplicaScene(plan=replicated(make_plan(1, 2))).start(0, 1)
    scene.hear(1, 0, progress=Progress(step=17))

    invalid = invalid_status(scene.status, [], scene.heartbeats(), 2, NOW)

    assert invalid.progress
    assert invalid.progress.step == 17


def test_a_cluster_without_jobsets() -> None:
    status = blocked_status(TrainingJobStatus(), "JobSetMissing", "install it", SILENCE, 1, NOW)

    assert (status.phase, truth(status)["Queued"], status.display.reason) == (
        "Queued",
        ("True", "JobSetMissing"),
        "JobSetMissing",
    )


def test_image_of_the_pods_is_recorded_once_they_train() -> None:
    scene = Scene().place(0, 1)
    containers = [{"name": "trainer", "image": "first"}]
    scene.jobsets[0]["spec"]["replicatedJobs"][0]["template"] = {
        "spec": {"template": {"spec": {"containers": containers}}}
    }
    scene.step()
    assert scene.status.trainer_image is None

    scene.hear_slice(0, 1, phase=Phase.IDLE, still=1000.0).step()
    assert scene.status.world
    assert scene.status.trainer_image == "first"

    containers[0]["image"] = "second"
    scene.train(step=10).step()
    assert scene.status.trainer_image == "first"


def test_columns_of_a_job_that_does_not_train_have_no_speed() -> None:
    scene = trained()
    scene.plan = make_plan(suspend=True)
    scene.step(1.0)
    assert (scene.status.phase, scene.status.display.eta, scene.status.display.tokens_per_second) == (
        "Suspending",
        "",
        "",
    )
    scene.hear_slice(0, 1, phase=Phase.LEFT).step(1.0)
    scene.jobsets, scene.pods, scene.news = {}, {}, {}
    scene.step(1.0)

    assert scene.status.progress
    assert scene.status.progress.eta_seconds
    columns = scene.status.display
    assert (scene.status.phase, columns.step, columns.eta, columns.tokens_per_second) == ("Suspended", "10/100", "", "")
    invalid = invalid_status(scene.status, [], scene.heartbeats(), 2, NOW)
    assert (invalid.display.eta, invalid.display.tokens_per_second) == ("", "")


def test_columns_of_an_invalid_job_that_trains_have_its_speed() -> None:
    scene = trained()

    invalid = invalid_status(scene.status, [], scene.heartbeats(), 2, NOW)

    assert (invalid.display.eta, invalid.display.tokens_per_second) == ("45 s", "1 k")
