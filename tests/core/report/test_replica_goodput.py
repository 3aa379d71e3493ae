"""Goodput of a job whose slices train as replicas: the time of one replica is not that of the job."""

from tests.support.builders import failure, make_plan, pod_manifest
from tests.support.replica_scenes import ReplicaScene, replicated
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.spec.elastic import Elastic
from trainingjob_operator.core.decide.decisions import Fail


def trained(step: int = 40, **sections: object) -> ReplicaScene:
    """Return a job of two replicas that trained for 100 s."""
    scene = ReplicaScene(plan=replicated(make_plan(1, 2, **sections))).start(0, 1)
    scene.run(0, 1, step=step)
    scene.step(100.0)
    return scene


def lose(scene: ReplicaScene, *slices: int) -> None:
    """Lose slices, and form their next worlds."""
    for number in slices:
        del scene.pods[number, 0]
    scene.step()
    for number in slices:
        scene.pods[number, 0] = pod_manifest(scene.plan, number, 0, uid=f"new-{number}")
        scene.hear_slice(number, phase=Phase.IDLE, generation=0, still=1000.0)
    scene.step(1.0)


def restart(scene: ReplicaScene, *slices: int) -> None:
    """Let new worlds compile."""
    for number in slices:
        generation = scene.generation(number)
        scene.hear_slice(number, phase=Phase.COMPILING, generation=generation, restored=None, progress=None)


def test_training_time_stays_while_one_replica_starts_again() -> None:
    scene = trained()
    lose(scene, 1)
    for _ in range(5):
        scene.run(0, step=50)
        restart(scene, 1)
        scene.step(10.0)
    scene.run(1, step=37, restored=36)
    scene.step(10.0)

    assert [attempt.lost_steps for attempt in scene.status.attempts] == [None, None, 4]
    assert scene.status.goodput.seconds == {"training": 161.0}
    assert all(attempt.seconds == {} for attempt in scene.status.attempts)


def test_steps_that_all_replicas_train_again_are_lost_once() -> None:
    scene = trained()
    lose(scene, 0, 1)
    restart(scene, 0, 1)
    scene.step(10.0)
    scene.run(0, step=36, restored=36)
    scene.step(10.0)
    scene.run(1, step=36, restored=36)
    scene.step(10.0)

    assert [attempt.lost_steps for attempt in scene.status.attempts] == [None, None, 4, 4]
    assert scene.status.goodput.seconds["lostSteps"] == 4 * 0.5


def test_steps_of_replicas_that_restore_together_are_lost_once() -> None:
    scene = trained()
    lose(scene, 0, 1)
    restart(scene, 0, 1)
    scene.step(10.0)
    scene.run(0, 1, step=36, restored=36)
    scene.step(10.0)

    assert scene.status.goodput.seconds["lostSteps"] == 4 * 0.5


def test_no_training_time_counts_after_the_failure_of_all_replicas() -> None:
    scene = trained(elastic=Elastic(max_restarts=0))
    scene.step(10.0)
    for number in (0, 1):
        scene.hear_slice(number, phase=Phase.FAILED, failure=failure(FailureReason.CRASH), still=8.0)
    decision = scene.step(2.0)
    if not isinstance(decision, Fail):
        decision = scene.step()

    assert isinstance(decision, Fail)
    assert sum(scene.status.goodput.seconds.values()) == 112.0
    assert scene.status.goodput.seconds["detecting"] == 8.0
