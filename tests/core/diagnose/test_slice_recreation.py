"""Slices that no restart in their pods mends: which they are, that no world is formed of them, that they are new."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.builders import child_job_manifest, failure, make_plan
from tests.support.scenes import Scene, kind, trained
from trainingjob_api.protocol import Diagnostics, FailureReason, Phase, ProcessState, Progress
from trainingjob_operator.core.decide.child_maintenance import DeleteJob
from trainingjob_operator.core.decide.decisions import Claim, EndWorld, Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_events import list_recreation_events
from trainingjob_operator.core.times import format_time

FIXED = make_plan(2, 2)
KILLED = failure(reason=FailureReason.KILLED, signal="SIGKILL", message="it has not ended")


def with_jobs(scene: Scene) -> Scene:
    scene.jobs = [child_job_manifest(scene.plan, number) for number in (0, 1)]
    return scene


def hang(scene: Scene, host: tuple[int, int] = (1, 0), phase: Phase = Phase.TRAINING, step: int = 10) -> Scene:
    """Let the members of the world stall because of a host, and report it."""
    assert scene.status.world
    progress = Progress(step=step, loss=2.5, step_seconds=0.5)
    for number in scene.status.world.slices:
        for other in range(2):
            entered = 11 if (number, other) == host else 12
            clue = Diagnostics(state=ProcessState.SLEEPING, cores=0.0, entered=entered, newest=f"step {entered}")
            reported = {
                "generation": scene.status.world.generation,
                "phase": phase,
                "progress": progress,
                "restored": 10,
            }
            scene.hear(number, other, still=2000.0, evidence=clue, **reported)
    return scene


def hung_once(**changes: object) -> Scene:
    scene = hang(with_jobs(trained(announced=9000.0, listening=9000.0, **changes)))
    scene.step(60.0)
    return scene


def form_next_world(scene: Scene) -> Scene:
    """Let time pass until the next world is formed."""
    while scene.see().world is None:
        scene.step(60.0)
    scene.announced = 60.0
    return scene


def jobs_to_delete(scene: Scene) -> list[tuple[int, str]]:
    return [(chore.job.slice, chore.why) for chore in scene.chores() if isinstance(chore, DeleteJob)]


def test_a_host_that_hangs_is_started_again_in_its_pod() -> None:
    scene = hang(with_jobs(trained(announced=9000.0, listening=9000.0)))

    assert kind(scene.decide()) == (Claim, (0, 1), Reason.HUNG_HOST, True)
    assert jobs_to_delete(scene) == []


def test_slice_is_recreated_if_its_host_hangs_again_and_the_others_continue() -> None:
    scene = hang(hung_once())
    why = "recreating slice 1: host 0 hangs again after a restart of its training process"

    assert kind(scene.step()) == (EndWorld, Reason.BACKING_OFF)
    assert jobs_to_delete(scene) == [(1, why)]
    assert [(one.reason, one.message, one.is_warning) for one in list_recreation_events(scene.chores())] == [
        (Reason.SLICE_RECREATED, why, True)
    ]

    assert form_next_world(scene).see().current_slices == (0,)
    assert jobs_to_delete(scene) == [(1, why)]


def test_a_job_that_needs_the_slice_waits_for_it() -> None:
    scene = hang(hung_once(plan=FIXED))

    assert kind(scene.decide()) == (EndWorld, Reason.WAITING_FOR_SLICES)
    assert jobs_to_delete(scene) == []

    scene.step(60.0)
    scene.hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)

    assert [number for number, _ in jobs_to_delete(scene)] == [1]
    assert kind(scene.step(60.0)) == (Wait, Reason.WAITING_FOR_SLICES)

    scene.jobs[1]["metadata"] |= {"uid": "made-anew", "creationTimestamp": format_time(scene.now)}

    assert jobs_to_delete(scene) == []
    assert form_next_world(scene).see().current_slices == (0, 1)


def committed(scene: Scene) -> Scene:
    scene.train(step=12, restored=10, committed=12, still=0.2, evidence=None)
    scene.step(60.0)
    return scene


def crashed(scene: Scene) -> Scene:
    assert scene.status.world
    scene.hear(0, 0, generation=scene.status.world.generation, phase=Phase.FAILED, failure=failure(), still=0.1)
    scene.step(60.0)
    return form_next_world(scene)


def moved(scene: Scene) -> Scene:
    """Move the pod of the host to another node."""
    scene.pods[1, 0]["spec"]["nodeName"] = "node-elsewhere"
    scene.nodes["node-elsewhere"] = scene.nodes["node-1-0"]
    return scene


def without_jobs(scene: Scene) -> Scene:
    scene.jobs = []
    return scene


NOT_AGAIN: dict[str, Callable[[], Scene]] = {
    "another host": lambda: hang(hung_once(), host=(1, 1)),
    "another slice": lambda: hang(hung_once(), host=(0, 0)),
    "another phase": lambda: hang(hung_once(), phase=Phase.COMPILING),
    "a step was saved between": lambda: hang(committed(hung_once())),
    "a crash came between": lambda: hang(crashed(hung_once())),
    "the pod lies elsewhere meanwhile": lambda: hang(moved(hung_once())),
    "nothing is known of a Job that could be made anew": lambda: hang(without_jobs(hung_once())),
}


@pytest.mark.parametrize("scene", NOT_AGAIN.values(), ids=NOT_AGAIN.keys())
def test_hangs_that_do_not_count_as_repeated(scene: Callable[[], Scene]) -> None:
    now = scene()

    assert isinstance(now.step(60.0), (Claim, EndWorld))
    assert jobs_to_delete(now) == []
    now.step(60.0)
    assert jobs_to_delete(now) == []


def test_a_host_that_nothing_names_wears_out_no_slice() -> None:
    scene = hung_once()
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        hang(scene, host=place)
    clue = Diagnostics(state=ProcessState.SLEEPING, cores=0.0, entered=12)
    scene.hear_slice(0, 1, still=2000.0, evidence=clue)

    assert isinstance(scene.step(), EndWorld)
    assert jobs_to_delete(scene) == []


def test_slice_is_recreated_if_its_killed_trainer_does_not_end() -> None:
    scene = with_jobs(trained())
    assert scene.status.world
    scene.hear(1, 0, phase=Phase.FAILED, failure=KILLED, broken=KILLED, unreaped=True, still=0.1)

    decision = scene.decide()
    assert isinstance(decision, Claim)
    assert kind(decision) == (Claim, (0,), Reason.TRAINER_STUCK, False)
    assert decision.end
    assert decision.end.cause.node == "node-1-0"
    assert decision.end.cause.message == "host 0 of slice 1: it has not ended"
    assert jobs_to_delete(scene) == [
        (1, "recreating slice 1: the killed training process of host 0 does not exit, so no new one can start")
    ]
    scene.jobs[1]["metadata"]["deletionTimestamp"] = format_time(scene.now)
    assert jobs_to_delete(scene) == []


def test_a_slice_that_trains_is_not_taken_from_its_world() -> None:
    scene = with_jobs(trained())
    scene.hear(1, 0, unreaped=True)

    assert jobs_to_delete(scene) == []


def test_a_job_of_a_moment_ago_is_given_time() -> None:
    scene = hang(hung_once())
    scene.step()
    scene.jobs[1]["metadata"]["creationTimestamp"] = format_time(scene.now - timedelta(seconds=5))

    assert jobs_to_delete(scene) == []
