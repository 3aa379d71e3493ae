"""The rules of decisions in order: one case for each rule."""

from collections.abc import Callable

import pytest

from tests.support.builders import failure, make_plan, pod_manifest
from tests.support.scenes import Scene, claim, drop_pod, fail, kind, lose_node, set_pod, trained
from trainingjob_api.protocol import Failure, FailureReason, Phase
from trainingjob_api.world import Span
from trainingjob_operator.core.decide.decisions import Claim, CollectDiagnostics, DrainWorld, Fail, Succeed, Wait
from trainingjob_operator.core.decide.world_formation import MAX_GENERATION_LEAD
from trainingjob_operator.core.reasons import Reason

FIRST_WORLD: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "nothing is there yet": (Scene, (Wait, Reason.WAITING_FOR_SLICES)),
    "pods run but have not reported": (lambda: Scene().place(0, 1), (Wait, Reason.WAITING_FOR_SLICES)),
    "one of two hosts has reported": (lambda: Scene().place(0).hear(0, 0), (Wait, Reason.WAITING_FOR_SLICES)),
    "standbys are still importing": (
        lambda: Scene().place(0, 1).hear_slice(0, 1, standby=False),
        (Wait, Reason.WAITING_FOR_SLICES),
    ),
    "all slices are ready": (lambda: Scene().place(0, 1).hear_slice(0, 1), (Claim, (0, 1), None, None)),
    "the minimum is ready, a moment ago": (
        lambda: Scene().place(0).hear_slice(0),
        (Wait, Reason.WAITING_FOR_MORE_SLICES),
    ),
    "the minimum is ready for a while": (
        lambda: Scene().place(0).hear_slice(0, still=4.0),
        (Claim, (0,), None, None),
    ),
    "the rest is about to report": (
        lambda: Scene().place(0, 1).hear_slice(0, still=4.0),
        (Wait, Reason.WAITING_FOR_MORE_SLICES),
    ),
    "the rest was about to report for too long": (
        lambda: Scene().place(0, 1).hear_slice(0, still=31.0),
        (Claim, (0,), None, None),
    ),
    "a report from a node that is not ready": (
        lambda: lose_node(Scene().place(0, 1).hear_slice(0, 1), 0, 0),
        (Wait, Reason.WAITING_FOR_MORE_SLICES),
    ),
    "an old report": (lambda: Scene().place(0).hear_slice(0, age=6.0), (Wait, Reason.WAITING_FOR_SLICES)),
    "below the fewest": (
        lambda: Scene(plan=make_plan(2, 3)).place(0, 1).hear_slice(0),
        (Wait, Reason.WAITING_FOR_SLICES),
    ),
    "three slices, of which two are no size": (
        lambda: Scene(plan=make_plan(1, 3, allowed=(1, 3))).place(0, 1).hear_slice(0, 1, still=4.0),
        (Claim, (0,), None, None),
    ),
    "a host cannot start the program": (
        lambda: Scene().place(0).hear_slice(0).hear(0, 1, broken=failure(), standby=False),
        (Fail, Reason.STANDBY_FAILED),
    ),
    "a host cannot start the program, another slice may": (
        lambda: Scene().place(0, 1).hear_slice(0).hear(0, 1, broken=failure(), standby=False),
        (Wait, Reason.WAITING_FOR_SLICES),
    ),
    "a host cannot start the program, another slice can": (
        lambda: Scene().place(0, 1).hear_slice(0, 1, still=4.0).hear(0, 1, broken=failure(), standby=False),
        (Claim, (1,), None, None),
    ),
    "suspended from the start": (
        lambda: Scene(plan=make_plan(suspend=True)).place(0, 1).hear_slice(0, 1),
        (Wait, Reason.SUSPENDED),
    ),
}


@pytest.mark.parametrize(("scene", "want"), FIRST_WORLD.values(), ids=FIRST_WORLD.keys())
def test_the_first_world(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def exited(code: int, reason: str = "Error") -> list[dict[str, object]]:
    return [
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": code, "reason": reason}},
        }
    ]


RUNNING: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "all train": (trained, (Wait, Reason.TRAINING)),
    "some still compile": (lambda: trained().hear(1, 0, phase=Phase.COMPILING), (Wait, Reason.JOINING)),
    "a slice that can start nothing is left out of the next world": (
        lambda: fail(trained(), 0, 0).hear(1, 1, broken=failure(), standby=False),
        (Claim, (0,), FailureReason.CRASH, True),
    ),
    "a slice that could start nothing else trains on": (
        lambda: trained().hear(1, 1, broken=failure(), standby=False),
        (Wait, Reason.TRAINING),
    ),
    "a pod is gone": (lambda: drop_pod(trained(), 1, 1), (Claim, (0,), Reason.POD_DELETED, False)),
    "a pod failed": (
        lambda: set_pod(trained(), 1, 1, phase="Failed", reason="Evicted"),
        (Claim, (0,), "Evicted", False),
    ),
    "a pod failed without a word": (
        lambda: set_pod(trained(), 1, 1, phase="Failed"),
        (Claim, (0,), Reason.POD_FAILED, False),
    ),
    "a container ended by itself": (
        lambda: set_pod(trained(), 1, 1, containerStatuses=exited(1)),
        (Claim, (0,), Reason.CONTAINER_EXITED, True),
    ),
    "a container was ended from outside": (
        lambda: set_pod(trained(), 1, 1, containerStatuses=exited(137)),
        (Claim, (0,), Reason.CONTAINER_EXITED, False),
    ),
    "a container used up its memory": (
        lambda: set_pod(trained(), 1, 1, containerStatuses=exited(137, "OOMKilled")),
        (Claim, (0,), "OutOfMemory", True),
    ),
    "an agent has no child any more": (
        lambda: trained().hear(1, 1, phase=Phase.IDLE),
        (Claim, (0, 1), Reason.AGENT_RESTARTED, False),
    ),
    "a container was restarted, the API server does not say why yet": (
        lambda: fail(trained(), 1, 1, reason=FailureReason.KILLED),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "a container was restarted, nobody ever says why": (
        lambda: fail(trained(), 1, 1, reason=FailureReason.KILLED, still=6.0),
        (Claim, (0, 1), Reason.AGENT_RESTARTED, False),
    ),
    "a container was restarted for want of memory": (
        lambda: fail(
            set_pod(
                trained(),
                1,
                1,
                containerStatuses=[
                    {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ],
            ),
            1,
            1,
            reason=FailureReason.KILLED,
        ),
        (Claim, (0, 1), "OutOfMemory", True),
    ),
    "a child was killed in a pod that lives": (
        lambda: fail(trained(), 1, 1, reason=FailureReason.KILLED, signal="SIGKILL"),
        (Claim, (0, 1), "Killed", True),
    ),
    "a child was killed as its pod is deleted": (
        lambda: fail(trained(), 1, 1, reason=FailureReason.KILLED, signal="SIGTERM").delete_pod(1, 1),
        (Claim, (0,), Reason.POD_DELETED, False),
    ),
    "a child crashed": (lambda: fail(trained(), 1, 1), (Claim, (0, 1), "Crash", True)),
    "a child crashed without a record": (
        lambda: trained().hear(1, 1, phase=Phase.FAILED, failure=None),
        (Claim, (0, 1), "Crash", True),
    ),
    "the first of two crashes is the cause": (
        lambda: fail(fail(trained(), 1, 1, still=0.5, reason=FailureReason.NON_FINITE), 0, 0, still=0.1),
        (Claim, (0, 1), "NonFinite", True),
    ),
    "what follows from a crash is not its cause": (
        lambda: fail(fail(trained(), 1, 1, still=0.1), 0, 0, still=0.5, reason=FailureReason.PEER),
        (Claim, (0, 1), "Crash", True),
    ),
    "hosts lost a peer and nobody knows which": (
        lambda: fail(trained(), 0, 0, reason=FailureReason.PEER, still=1.0),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "hosts lost a peer, and then a slice is silent": (
        lambda: fail(trained().silence(1).hear(0, 1, still=6.0), 0, 0, reason=FailureReason.PEER, still=5.5),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "a host lost a peer, another saves, and a slice is silent": (
        lambda: fail(
            trained().silence(1).hear(0, 1, phase=Phase.SAVING, still=5.5), 0, 0, reason=FailureReason.PEER, still=5.5
        ),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "hosts lost a peer while the operator was away, and a slice may yet be heard of": (
        lambda: fail(
            trained(listening=6.0).silence(1, 8.0).hear(0, 1, still=6.0), 0, 0, reason=FailureReason.PEER, still=6.0
        ),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "hosts lost a peer while the operator was away, and a slice is not heard of again": (
        lambda: fail(
            trained(listening=16.0).silence(1, 18.0).hear(0, 1, still=16.0), 0, 0, reason=FailureReason.PEER, still=16.0
        ),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "hosts lost a peer and it never shows which": (
        lambda: fail(trained(), 0, 0, reason=FailureReason.PEER, still=6.0),
        (Claim, (0, 1), "Peer", True),
    ),
    "hosts lost a peer and JAX names it: its agent is heard, so its trainer hangs": (
        lambda: fail(trained(), 0, 0, reason=FailureReason.PEER, missed=[3], still=3.1),
        (Claim, (0, 1), Reason.HUNG_HOST, True),
    ),
    "the same, and it may still tell where that stands": (
        lambda: fail(trained(), 0, 0, reason=FailureReason.PEER, missed=[3]),
        (CollectDiagnostics, Reason.COLLECTING_DIAGNOSTICS),
    ),
    "the one that JAX names crashed": (
        lambda: fail(fail(trained(), 1, 1), 0, 0, reason=FailureReason.PEER, missed=[3]),
        (Claim, (0, 1), "Crash", True),
    ),
    "the one that JAX names says that it lost a peer too": (
        lambda: fail(fail(trained(), 1, 1, reason=FailureReason.PEER), 0, 0, reason=FailureReason.PEER, missed=[3]),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "the one that JAX names is silent": (
        lambda: fail(trained().silence(1), 0, 0, reason=FailureReason.PEER, missed=[2]),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "JAX names several": (
        lambda: fail(trained(), 0, 0, reason=FailureReason.PEER, missed=[2, 3]),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "JAX names nobody of this world": (
        lambda: fail(trained(), 0, 0, reason=FailureReason.PEER, missed=[9]),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "a fatal failure wins over all": (
        lambda: fail(drop_pod(trained(), 1, 1), 0, 0, reason=FailureReason.DATA, fatal=True),
        (Fail, "Data"),
    ),
    "a host is in a later world": (
        lambda: trained().hear(1, 0, generation=7),
        (Claim, (0, 1), Reason.AGENT_RESTARTED, False),
    ),
    "the operator is new and has not heard of slice 1": (
        lambda: forget_slice(trained(listening=5.0), 1),
        (Wait, Reason.WAITING_FOR_HEARTBEATS),
    ),
    "the operator listens for long and never heard of slice 1": (
        lambda: forget_slice(trained(listening=20.0), 1).hear_slice(0, still=20.0),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "a pod is being deleted": (lambda: trained().delete_pod(1, 0), (DrainWorld, Reason.DRAINING)),
    "some have left": (lambda: trained().hear(0, 0, phase=Phase.LEFT), (DrainWorld, Reason.DRAINING_LAST_HOSTS)),
    "all have left": (
        lambda: trained().hear_slice(0, 1, phase=Phase.LEFT),
        (Claim, (0, 1), Reason.RESIZED, False),
    ),
    "all have left and one pod is gone": (
        lambda: drop_pod(trained().hear_slice(0, 1, phase=Phase.LEFT), 1, 1),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "some have left, one hangs": (
        lambda: trained().hear_slice(0, phase=Phase.LEFT).hear_slice(1, still=61.0),
        (Claim, (0, 1), Reason.RESIZED, False),
    ),
    "some are done": (lambda: trained().hear(0, 0, phase=Phase.DONE), (Wait, Reason.FINISHING)),
    "all are done": (lambda: trained().hear_slice(0, 1, phase=Phase.DONE), (Succeed,)),
    "all but a lost one are done": (
        lambda: drop_pod(trained().hear_slice(0, 1, phase=Phase.DONE).hear(1, 1, phase=Phase.TRAINING), 1, 1),
        (Succeed,),
    ),
    "all pods succeeded while the operator was away": (lambda: succeed_all(trained()), (Succeed,)),
}


@pytest.mark.parametrize(("scene", "want"), RUNNING.values(), ids=RUNNING.keys())
def test_a_running_world(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def forget_slice(scene: Scene, slice_number: int) -> Scene:
    for host in range(2):
        del scene.news[scene.pod(slice_number, host)["metadata"]["uid"]]
    return scene


def succeed_all(scene: Scene) -> Scene:
    scene.news.clear()
    for pod in scene.pods.values():
        pod["status"]["phase"] = "Succeeded"
    return scene


def test_a_world_did_not_break_before_its_newest_step() -> None:
    """Replace a pod without any heartbeat to this operator: the newest step of its peers bounds the training."""
    scene = drop_pod(forget_slice(trained().hear_slice(0, still=3.0), 1), 1, 1)

    end = claim(scene).end

    assert end
    assert end.seconds_ago == 3.0


def test_next_generation_exceeds_all_reported_generations() -> None:
    scene = Scene(burned=4).place(0, 1).hear_slice(0, 1)
    assert claim(scene).world.generation == 5

    scene.hear(0, 1, generation=9)
    assert claim(scene).world.generation == 10

    scene.status = scene.status.model_copy(update={"lineage": (Span(generation=12, first=1),)})
    assert claim(scene).world.generation == 13

    fenced_off = Failure(reason=FailureReason.STORAGE, message="fenced off", newest_generation=40)
    scene.hear(0, 0, failure=fenced_off)
    assert claim(scene).world.generation == 41


def test_a_generation_that_a_host_makes_up_uses_up_none() -> None:
    scene = Scene(burned=4).place(0, 1).hear_slice(0, 1)

    scene.hear(0, 1, generation=4 + MAX_GENERATION_LEAD)
    assert claim(scene).world.generation == 5 + MAX_GENERATION_LEAD

    scene.hear(0, 1, generation=5 + MAX_GENERATION_LEAD)
    assert claim(scene).world.generation == 5

    fenced_off = Failure(reason=FailureReason.STORAGE, message="", newest_generation=5 + MAX_GENERATION_LEAD)
    scene.hear(0, 0, failure=fenced_off)
    assert claim(scene).world.generation == 5


def test_processes_are_dense_slice_by_slice_and_the_first_one_leads() -> None:
    world = claim(Scene().place(0, 1).hear_slice(0, 1)).world

    assert [(m.process, m.slice, m.host, m.pod_uid) for m in world.members] == [
        (0, 0, 0, "pod-0-0"),
        (1, 0, 1, "pod-0-1"),
        (2, 1, 0, "pod-1-0"),
        (3, 1, 1, "pod-1-1"),
    ]
    assert world.coordinator == "10.0.0.0:5000"
    assert (world.layout, world.remat) == (make_plan().layout(2), "none")


def test_ipv6_coordinator_address_has_brackets() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1)
    set_pod(scene, 0, 0, podIP="fd00::1")

    assert claim(scene).world.coordinator == "[fd00::1]:5000"


def test_the_world_after_a_lost_first_slice_is_led_by_the_next() -> None:
    world = claim(trained().silence(0).hear_slice(1, still=6.0)).world

    assert [(m.process, m.slice) for m in world.members] == [(0, 1), (1, 1)]
    assert world.coordinator == "10.0.1.0:5010"


def test_a_world_may_build_on_what_earlier_ones_restored() -> None:
    scene = trained()
    scene.train(step=30, restored=0)
    drop_pod(scene, 1, 1)

    assert claim(scene).world.lineage == (Span(generation=1, first=1),)


def test_a_world_too_large_for_the_status_is_recognised_by_its_hash() -> None:
    scene = trained()
    assert scene.status.world
    scene.status = scene.status.model_copy(update={"world": scene.status.world.model_copy(update={"pods": ()})})
    assert kind(scene.decide()) == (Wait, Reason.TRAINING)

    scene.pods[1, 1] = pod_manifest(scene.plan, 1, 1, uid="another")
    del scene.news["pod-1-1"]  # the operator has restarted since the pod was replaced
    assert kind(scene.decide()) == (Claim, (0,), Reason.MEMBERS_CHANGED, False)
    drop_pod(scene, 1, 1)
    assert kind(scene.decide()) == (Claim, (0,), Reason.MEMBERS_CHANGED, False)


def test_world_without_attempts_in_the_status_keeps_training() -> None:
    scene = trained()
    scene.status = scene.status.model_copy(update={"attempts": ()})

    assert kind(scene.decide()) == (Wait, Reason.TRAINING)


@pytest.mark.parametrize("nonsense", [{"slices": ()}, {"generation": 0}], ids=str)
def test_invalid_world_in_the_status_is_ignored(nonsense: dict[str, object]) -> None:
    scene = trained()
    assert scene.status.world
    world = scene.status.world.model_copy(update=nonsense)
    scene.status = scene.status.model_copy(update={"world": world, "attempts": ()})

    assert scene.see().world is None


def test_only_pods_of_its_slices_are_taken_for_members_of_a_large_world() -> None:
    scene = Scene().form(0).place(1)
    assert scene.status.world
    scene.status = scene.status.model_copy(update={"world": scene.status.world.model_copy(update={"pods": ()})})

    world = scene.see().world

    assert world
    assert [member.pod_uid for member in world.members] == ["pod-0-0", "pod-0-1"]
