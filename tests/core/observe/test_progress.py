"""Progress of training and saved steps, as the hosts of a world report them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import make_plan
from tests.support.replica_scenes import ReplicaScene, replicated
from tests.support.scenes import Scene, fail, trained
from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.progress_status import EvaluationScores
from trainingjob_api.world import Span
from trainingjob_operator.core.observe.progress import follow_reports
from trainingjob_operator.core.planner.flops import count_useful_flops
from trainingjob_operator.core.planner.plan import Rates
from trainingjob_operator.core.planner.workload import describe_workload


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


def test_a_save_took_as_long_as_the_slowest_host_waited_for_it() -> None:
    scene = trained()
    for slice_number, host, waited in ((0, 0, 0.02), (0, 1, 0.5), (1, 0, None)):
        scene.hear(slice_number, host, progress=Progress(step=12, save_seconds=waited))
    scene.step(1.0)

    assert scene.status.progress
    assert scene.status.progress.save_seconds == 0.5


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        pytest.param([(0.1, 0.5), (0.2, 0.5), (None, 0.5)], 0.4, id="the slowest of those that know"),
        pytest.param([(0.6, 0.5)], 1.0, id="longer than a step"),
        pytest.param([(None, 0.5), (0.1, None)], None, id="too few steps"),
    ],
)
def test_data_loading_takes_the_share_of_the_slowest_host(seconds: list[Any], want: float | None) -> None:
    scene = trained()
    for (slice_number, host), (load, step) in zip(((0, 0), (0, 1), (1, 0)), seconds, strict=False):
        progress = Progress(step=12, load_seconds=load, typical_seconds=step)
        scene.hear(slice_number, host, progress=progress)
    scene.hear(1, 1, progress=Progress(step=12)).step(1.0)

    assert scene.status.progress
    assert scene.status.progress.data_loading_share == want


@pytest.mark.parametrize(
    ("rate", "tokens", "is_known"),
    [
        pytest.param(1e9, 1000.0, True, id="known rates"),
        pytest.param(1e9, None, False, id="no speed"),
        pytest.param(0.0, 1000.0, False, id="an accelerator without rates"),
    ],
)
def test_utilization_of_the_devices_follows_from_the_speed(rate: float, tokens: float | None, is_known: bool) -> None:
    plan = make_plan()
    scene = trained(plan=replace(plan, shape=replace(plan.shape, rates=Rates(bfloat16=rate, float32=rate))))
    scene.train(step=12, progress=Progress(step=12, tokens_per_second=tokens)).step(1.0)

    assert scene.status.progress
    flops = count_useful_flops(describe_workload(plan.spec)) * 1000.0
    want = round(flops / (2 * plan.shape.num_devices * rate), 4) if is_known else None
    assert scene.status.progress.mfu == want


def test_resuming_from_a_snapshot_creates_no_newer_checkpoint() -> None:
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


def test_world_reached_the_step_that_the_next_one_resumes_from() -> None:
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
    scores = {"held-out": EvaluationScores(accuracy=0.5, bits_per_byte=1.1)}
    scene.hear(1, 1, progress=Progress(step=12, loss=2.25, evaluations={"held-out": 2.5}, scores=scores))
    scene.hear(0, 0, progress=Progress(step=12))
    scene.step(1.0)
    assert scene.status.progress
    assert (scene.status.progress.step, scene.status.progress.loss) == (12, 2.25)
    scene.hear_slice(0, 1, progress=Progress(step=13))
    scene.step(1.0)

    assert scene.status.progress.evaluations == {"held-out": 2.5}
    assert scene.status.progress.scores == scores
    assert scene.status.progress.eta_seconds is None


PATTERN = {"pattern": r"step (?P<step>\d+)"}


@pytest.mark.parametrize(
    ("program", "step"),
    [({"steps": 50}, 0), ({"progress": PATTERN}, 0), ({}, None)],
    ids=["a number of steps", "steps in the log", "no step is announced"],
)
def test_a_program_that_announces_steps_has_made_none_before_its_first_report(
    program: dict[str, Any], step: int | None
) -> None:
    scene = Scene(plan=make_plan(program={"command": ["train"], **program}))
    scene.place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    scene.step()
    scene.hear_slice(0, 1, phase=Phase.TRAINING, generation=1)
    scene.step(1.0)
    assert (scene.status.progress and scene.status.progress.step) == step

    scene.hear_slice(0, 1, phase=Phase.TRAINING, generation=1, restored=0, progress=Progress(step=4))
    scene.step(1.0)
    assert scene.status.progress
    assert scene.status.progress.step == 4


def test_one_slow_step_changes_neither_step_time_nor_estimate() -> None:
    scene = trained()
    scene.train(step=20, progress=Progress(step=20, step_seconds=9.0, typical_seconds=2.0)).step(1.0)

    progress = scene.status.progress
    assert progress
    assert (progress.step_seconds, progress.eta_seconds) == (2.0, 160)


def test_first_steps_of_a_world_have_the_newest_step_time() -> None:
    scene = trained()
    scene.train(step=20, progress=Progress(step=20, step_seconds=9.0)).step(1.0)

    progress = scene.status.progress
    assert progress
    assert (progress.step_seconds, progress.eta_seconds) == (9.0, 720)


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        pytest.param(10, 10 * 2 + 60 * 4 + 20 * 16, id="before the first change"),
        pytest.param(20, 60 * 4 + 20 * 16, id="at the last step of a size"),
        pytest.param(50, 30 * 2 + 20 * 8, id="between two changes"),
        pytest.param(90, 10 * 2, id="after the last change"),
        pytest.param(100, 0, id="no step is left"),
        pytest.param(120, 0, id="an edit has removed steps"),
    ],
)
def test_rest_of_a_batch_schedule_takes_as_long_as_its_batches_are_large(step: int, seconds: int) -> None:
    changes = ({"fromStep": 21, "globalBatchSize": 32}, {"fromStep": 81, "globalBatchSize": 128})
    training = {"steps": 100, "globalBatchSize": 16, "sequenceLength": 128, "batchSchedule": changes}
    scene = trained(plan=make_plan(training=training))
    scene.train(step=step, progress=Progress(step=step, step_seconds=2.0)).step(1.0)

    assert scene.status.progress
    assert scene.status.progress.eta_seconds == seconds


def test_time_of_lost_steps_is_that_of_typical_steps() -> None:
    scene = trained()
    scene.train(step=30, progress=Progress(step=30, step_seconds=0.1, typical_seconds=2.0)).step(100.0)
    fail(scene, 1, 1).step()
    scene.train(step=25, restored=25, failure=None).step(1.0)

    assert scene.status.goodput.seconds["lostSteps"] == 5 * 2.0


def test_speed_of_replicas_is_that_of_all_of_them() -> None:
    scene = ReplicaScene(plan=replicated(make_plan(1, 3))).start(0, 1, 2)
    for number, speed in ((0, 1000.0), (1, 1200.0), (2, None)):
        scene.run(number, step=20, progress=Progress(step=20, tokens_per_second=speed))
    scene.step(1.0)

    assert scene.status.progress
    assert scene.status.progress.tokens_per_second == 2200.0
    without_plan = follow_reports(scene.status, scene.heartbeats().latest_reports)
    assert without_plan
    assert without_plan.tokens_per_second == 2200.0
    scene.run(0, 1, 2, step=21, progress=Progress(step=21)).step(1.0)
    assert scene.status.progress.tokens_per_second is None


def test_evaluations_stay_after_a_restart_from_another_step() -> None:
    scene = trained()
    scores = {"held-out": EvaluationScores(accuracy=0.5)}
    progress = Progress(step=30, step_seconds=2.0, evaluations={"held-out": 2.5}, scores=scores)
    scene.train(step=30, progress=progress).step(1.0)
    fail(scene, 1, 1).step()
    scene.train(step=0, restored=25, progress=None, phase=Phase.COMPILING, failure=None).step(1.0)
    before = scene.status.progress
    scene.train(step=26, restored=25).step(1.0)

    for progress_status in (before, scene.status.progress):
        assert progress_status
        assert (progress_status.evaluations, progress_status.scores) == ({"held-out": 2.5}, scores)
