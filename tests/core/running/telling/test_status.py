"""The status after each step of a job's life: what people read and what the operator remembers."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import NOW, make_plan
from tests.scenes import Scene, drop_pod, fail, trained
from trainingjob_api.protocol import Damage, Phase, Progress
from trainingjob_api.status import Condition, TrainingJobStatus
from trainingjob_api.world import Span
from trainingjob_operator.core.running import goodput
from trainingjob_operator.core.running.observing import lineage
from trainingjob_operator.core.running.telling.announce import make_bulletin
from trainingjob_operator.core.running.telling.conditions import KNOWN
from trainingjob_operator.core.running.telling.status import blocked_status, invalid_status
from trainingjob_operator.core.times import format_time


def by_type(status: TrainingJobStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


def truth(status: TrainingJobStatus) -> dict[str, tuple[str, str]]:
    return {kind: (one.status, one.reason) for kind, one in by_type(status).items()}


def test_a_world_that_trains() -> None:
    status = trained().status

    assert truth(status) == {
        "Valid": ("True", "Valid"),
        "Queued": ("False", "Placed"),
        "Running": ("True", "Training"),
        "Degraded": ("False", "AllSlices"),
        "Suspended": ("False", "NotSuspended"),
        "Succeeded": ("Unknown", "NotOver"),
        "Failed": ("False", "NotOver"),
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


def test_a_size_that_is_none_says_why() -> None:
    scene = Scene(plan=make_plan(1, 2, allowed=(1,))).form(0)

    assert scene.status.plan
    assert (scene.status.plan.sizes[1].valid, scene.status.plan.sizes[1].why) == (False, "does not divide")
    assert scene.status.display.slices == "1/1"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
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


def test_nothing_changes_after_the_end() -> None:
    scene = trained().hear_slice(0, 1, phase=Phase.DONE)
    scene.step()
    ended = scene.status
    scene.step(3600.0)

    assert scene.status == ended


def test_phases_of_a_world_are_where_the_time_goes() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1)
    scene.step()
    for phase, restored in (
        (Phase.CONNECTING, None),
        (Phase.RESTORING, None),
        (Phase.COMPILING, 0),
        (Phase.TRAINING, 0),
    ):
        scene.hear_slice(0, 1, generation=1, phase=phase, restored=restored)
        scene.step(10.0)
    scene.hear(0, 0, phase=Phase.EVALUATING)
    scene.hear(0, 1, phase=Phase.SAVING)
    scene.step(10.0)
    scene.hear_slice(0, 1, phase=Phase.EVALUATING)
    scene.step(10.0)
    scene.step(10.0)

    assert scene.status.goodput.seconds == {
        "starting": 20.0,
        "restoring": 10.0,
        "compiling": 10.0,
        "training": 20.0,
        "evaluating": 10.0,
    }
    assert scene.status.goodput.ratio == round(20 / 70, 4)


def test_a_world_whose_first_hosts_are_done_still_trains() -> None:
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
def test_what_the_forming_of_a_world_is_called_by_what_came_before(cause: str, phase: str, bucket: str) -> None:
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


def test_time_after_a_lost_slice_is_no_training_from_when_it_fell_silent() -> None:
    scene = trained()
    scene.step(100.0)
    scene.silence(1).hear_slice(0, still=6.0)
    scene.step(6.0)
    scene.train(step=0, restored=8, phase=Phase.RESTORING, progress=None)
    scene.step(2.0)
    scene.train(step=9, restored=8)
    scene.step(3.0)

    status = scene.status
    assert status.goodput.seconds == {
        "training": 99.0,
        "detecting": 6.0,
        "recovering": 2.0,
        "restoring": 3.0,
        "lostSteps": 1.0,
    }
    assert [attempt.seconds for attempt in status.attempts] == [
        {"training": 100.0, "detecting": 6.0},
        {"recovering": 2.0, "restoring": 3.0},
    ]
    assert status.attempts[0].ended == format_time(NOW + timedelta(seconds=100))
    assert (status.attempts[1].lost_steps, status.attempts[1].recovery_seconds) == (2, 11.0)
    assert status.lineage == (Span(generation=1, first=1, last=8), Span(generation=2, first=9))
    assert status.attempts[0].cause
    assert status.attempts[0].cause.message == "host 0 of slice 1 fell silent and its peers stopped"


def test_what_breaks_before_it_trains_took_no_training_away() -> None:
    scene = trained()
    scene.step(50.0)
    scene.train(step=10, phase=Phase.SAVING)
    scene.step(1.0)
    fail(scene, 1, 1, still=4.0).step(4.0)

    assert scene.status.goodput.seconds == {"training": 51.0, "saving": 0.0, "detecting": 4.0}


def test_time_without_any_world_is_down() -> None:
    scene = trained(plan=make_plan(2, 2)).silence(1).hear_slice(0, still=6.0)
    scene.step()
    scene.step(100.0)

    assert scene.status.goodput.seconds["down"] == 100.0
    assert "down" not in scene.status.attempts[-1].seconds


def test_a_pause_is_no_recovery() -> None:
    scene = trained()
    scene.plan = make_plan(suspend=True)
    scene.hear_slice(0, 1, phase=Phase.LEFT).step()
    scene.plan = make_plan()
    scene.hear_slice(0, 1, phase=Phase.IDLE, still=100.0).step(7200.0)
    scene.train(step=11, restored=10)
    scene.step(1.0)

    assert [(attempt.first_step, attempt.recovery_seconds) for attempt in scene.status.attempts[1:]] == [(10, None)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100), st.sampled_from(["train", "crash", "lose", "leave"])), max_size=12))
def test_every_second_is_in_exactly_one_place(moves: list[tuple[float, str]]) -> None:
    scene = trained()
    latest = 0.0
    for seconds, move in moves:
        latest = max(latest, (scene.now - NOW).total_seconds() + seconds)
        scene.now += timedelta(seconds=seconds)
        if scene.status.completion_time:
            break
        if move == "crash" and scene.status.world:
            fail(scene, scene.status.world.slices[0], 0, message=str(seconds), still=1.0)
        elif move == "leave" and scene.status.world:
            scene.hear_slice(*scene.status.world.slices, phase=Phase.LEFT)
        else:
            scene.train(step=20, restored=10)
        scene.step()
        spent = sum(scene.status.goodput.seconds.values())
        assert abs(spent - max(latest, 0.0)) < 0.01
        assert all(value >= 0 for value in scene.status.goodput.seconds.values())


def test_suspended_time_is_nobodys_loss() -> None:
    status = TrainingJobStatus.model_validate({"goodput": {"seconds": {"training": 50.0, "suspended": 50.0}}})

    assert goodput.running_seconds(status.goodput) == 50.0
    assert goodput.move(status.goodput, "training", "recovering", 0.0) == status.goodput
    assert goodput.move(status.goodput, "training", "recovering", 5.0).ratio == 0.9


def test_progress_follows_the_world_back_to_where_it_restored() -> None:
    scene = trained().train(step=30, committed=25)
    scene.step(1.0)
    assert scene.status.checkpoint
    assert scene.status.checkpoint.step == 25
    fail(scene, 1, 1).step()
    scene.train(step=0, restored=20, progress=None, committed=None, phase=Phase.COMPILING, failure=None)
    scene.step(1.0)

    assert scene.status.progress
    assert scene.status.progress.step == 20
    assert scene.status.checkpoint
    assert scene.status.checkpoint.step == 20
    assert scene.status.attempts[-1].lost_steps == 10


def test_a_snapshot_counts_once_every_host_holds_it() -> None:
    scene = trained()
    for slice_number, host, snapshot, waited in ((0, 0, 10, 0.02), (0, 1, 5, 0.5), (1, 0, 10, 0.01)):
        progress = Progress(step=12, snapshot=snapshot, snapshot_seconds=waited)
        scene.hear(slice_number, host, progress=progress)
    scene.step(1.0)
    assert scene.status.progress
    assert scene.status.progress.snapshot is None

    scene.hear(1, 1, progress=Progress(step=12, snapshot=10, snapshot_seconds=0.03))
    scene.step(1.0)
    assert (scene.status.progress.snapshot, scene.status.progress.snapshot_seconds) == (5, 0.5)


def test_what_went_on_from_memory_is_no_newer_checkpoint() -> None:
    scene = trained().train(step=30, committed=20)
    scene.step(1.0)
    fail(scene, 1, 1).step()
    scene.train(step=28, restored=28, tier="ram", committed=None, failure=None)
    scene.step(1.0)

    assert scene.status.checkpoint
    assert scene.status.checkpoint.step == 20
    last = scene.status.attempts[-1]
    assert (last.first_step, last.tier, last.lost_steps) == (28, "ram", 2)
    assert scene.status.lineage == (
        Span(generation=1, first=1, last=28),
        Span(generation=2, first=29, tier="ram"),
    )


def test_a_world_reached_what_the_next_one_goes_on_from_though_it_never_said_so() -> None:
    scene = trained()
    fail(scene, 1, 1).step()
    scene.train(step=13, restored=12, tier="ram", failure=None)
    scene.step(1.0)

    first, second = scene.status.attempts
    assert (first.last_step, second.first_step, second.lost_steps) == (12, 12, 0)


@pytest.mark.parametrize(("restored", "want"), [(0, None), (5, "durable")])
def test_a_start_from_scratch_is_from_no_tier(restored: int, want: str | None) -> None:
    assert Scene().form(0, 1, restored=restored).status.attempts[-1].tier == want


def test_the_newest_measures_are_those_of_the_furthest_host() -> None:
    scene = trained()
    scene.hear(1, 1, progress=Progress(step=12, loss=2.25, evaluations={"held-out": 2.5}))
    scene.hear(0, 0, progress=Progress(step=12))
    scene.step(1.0)
    assert scene.status.progress
    assert (scene.status.progress.step, scene.status.progress.loss) == (12, 2.25)
    scene.hear_slice(0, 1, progress=Progress(step=13))
    scene.step(1.0)

    assert scene.status.progress.evaluations == {"held-out": 2.5}
    assert scene.status.progress.eta_seconds is None


def test_a_spec_that_cannot_be_planned() -> None:
    status = invalid_status(TrainingJobStatus(), ["spec.model: is missing.", "spec.data: is missing."], 3, NOW)

    assert status.phase == "Invalid"
    assert [one.type for one in status.conditions if one.status == "Unknown"] == [k for k in KNOWN if k != "Valid"]
    valid = by_type(status)["Valid"]
    assert (valid.status, valid.reason, valid.observed_generation) == ("False", "InvalidSpec", 3)
    assert valid.message == "2 problems:\nspec.model: is missing.\nspec.data: is missing."
    assert status.problems == ("spec.model: is missing.", "spec.data: is missing.")


def test_a_spec_that_became_invalid_says_so_beside_what_runs() -> None:
    running = trained().status

    status = invalid_status(running, ["spec.elastic.maxRestarts: must be at least 0."], 2, NOW)

    assert status.phase == "Running"
    assert truth(status)["Running"] == ("True", "Training")
    assert truth(status)["Valid"] == ("False", "InvalidSpec")


def test_a_cluster_without_jobsets() -> None:
    status = blocked_status(TrainingJobStatus(), "JobSetMissing", "install it", 1, NOW)

    assert (status.phase, truth(status)["Queued"], status.display.reason) == (
        "Queued",
        ("True", "JobSetMissing"),
        "JobSetMissing",
    )


def test_a_lineage_forgets_what_was_never_built_upon() -> None:
    spans = lineage.extend((), 1, 0)
    spans = lineage.extend(spans, 2, 50)
    spans = lineage.extend(spans, 4, 20)

    assert spans == (Span(generation=1, first=1, last=20), Span(generation=4, first=21))
    assert lineage.extend(spans, 4, 30) == spans
    assert lineage.before(spans, 4) == spans[:1]
    assert lineage.extend(spans, 5, 0) == (Span(generation=5, first=1),)
    for generation in range(6, 300):
        spans = lineage.extend(spans, generation, generation * 10)
    assert len(spans) == lineage.MAX_SPANS


def test_a_damaged_checkpoint_is_told_once_when_it_is_known_what_was_taken_instead() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1)
    scene.step()
    damage = (Damage(step=20, message="data/0 differs"),)
    scene.train(step=10, restored=10, damaged=damage)
    first = scene.happenings()
    scene.step()

    assert [(one.warning, one.reason, one.message) for one in first] == [
        (True, "CheckpointDamaged", "step 20 was skipped: data/0 differs")
    ]
    assert scene.happenings() == ()
    assert Scene().happenings() == ()


def test_hosts_hear_how_the_job_ended() -> None:
    scene = drop_pod(trained().hear_slice(0, 1, phase=Phase.DONE), 1, 1)
    scene.step()

    bulletin = make_bulletin(scene.plan, scene.see(), scene.decide(), scene.status)

    assert bulletin.outcome == "Succeeded: Completed: all steps are trained and saved"
    forged = scene.status.model_copy(update={"conditions": ()})
    assert make_bulletin(scene.plan, scene.see(), scene.decide(), forged).outcome == "Ended"
