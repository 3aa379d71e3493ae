"""Members of a world too large for the status: which pods they are while pods fail, terminate and are replaced."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.builders import pod_manifest
from tests.support.scenes import Scene, drop_pod, fail, kind, lose_node, set_pod, trained
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time


def without_names(scene: Scene) -> Scene:
    """Drop the names of the world's pods from the status, as the size limit does from about 500 hosts on."""
    assert scene.status.world
    scene.status = scene.status.model_copy(update={"world": scene.status.world.model_copy(update={"pods": ()})})
    return scene


def replace_pod(scene: Scene, slice_number: int, host: int) -> Scene:
    """Create the replacement of a pod that still exists. It has no node yet."""
    twin = pod_manifest(scene.plan, slice_number, host, uid=f"new-{slice_number}-{host}", phase="Pending", podIP="")
    twin["metadata"]["creationTimestamp"] = format_time(scene.now)
    del twin["spec"]["nodeName"]
    scene.more_pods.append(twin)
    return scene


def restart_operator(scene: Scene) -> Scene:
    """Forget the reports of pods that no longer exist."""
    existing = {pod["metadata"]["uid"] for pod in scene.pods.values()}
    scene.news = {uid: report for uid, report in scene.news.items() if uid in existing}
    return scene


def evicted(scene: Scene) -> Scene:
    return replace_pod(scene.delete_pod(1, 0, seconds_left=300.0), 1, 0)


LOSSES: dict[str, Callable[[Scene], Scene]] = {
    "a pod is evicted with grace, and its replacement is pending": evicted,
    "a pod failed, and its replacement is pending": lambda scene: replace_pod(
        set_pod(scene, 1, 0, phase="Failed"), 1, 0
    ),
    "a pod is stuck on a lost node, and its replacement is pending": lambda scene: replace_pod(
        lose_node(scene, 1, 0).delete_pod(1, 0, seconds_left=-3.0), 1, 0
    ),
    "a pod no longer exists, but has reported": lambda scene: drop_pod(scene, 1, 0),
    "a pod no longer exists, and its replacement is pending": lambda scene: drop_pod(replace_pod(scene, 1, 0), 1, 0),
    "a trainer failed": lambda scene: fail(scene, 1, 0),
    "all members have left, and a pod has ended": lambda scene: drop_pod(
        scene.hear_slice(0, 1, phase=Phase.LEFT), 1, 0
    ),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
def test_a_world_without_names_in_the_status_decides_as_one_with_names(lose: Callable[[Scene], Scene]) -> None:
    named, unnamed = lose(trained()), lose(without_names(trained()))
    decision = named.decide()

    assert unnamed.decide() == decision
    assert named.step() == unnamed.step()
    assert named.status.nodes == unnamed.status.nodes
    assert Reason.MEMBERS_CHANGED not in kind(decision)


def test_graceful_eviction_drains_a_world_without_names_in_the_status() -> None:
    assert kind(evicted(without_names(trained())).decide()) == (DrainWorld, Reason.DRAINING)


def test_a_world_formed_while_a_former_pod_terminates_has_the_newer_pod() -> None:
    scene = Scene().place(0, 1)
    former = pod_manifest(scene.plan, 1, 0, uid="former")
    former["metadata"] |= {
        "creationTimestamp": "2026-11-21T11:00:00Z",
        "deletionTimestamp": "2026-11-21T13:00:00Z",
    }
    scene.more_pods = [former]
    scene.form(0, 1)

    assert kind(evicted(without_names(scene)).decide()) == (DrainWorld, Reason.DRAINING)


def test_a_pod_of_the_second_of_the_claim_is_a_replacement() -> None:
    """The API server truncates creation times to a second, so a later pod can seem older than the world."""
    scene = without_names(trained())
    assert scene.status.world
    world = scene.status.world.model_copy(update={"since": "2026-11-21T12:00:00.700Z"})
    scene.status = scene.status.model_copy(update={"world": world})
    evicted(scene).more_pods[0]["metadata"]["creationTimestamp"] = "2026-11-21T12:00:00Z"

    scene.news = {}
    assert scene.see().world.find_member("pod-1-0")  # type: ignore[union-attr]


def test_the_only_host_whose_pod_was_replaced_is_named() -> None:
    scene = drop_pod(replace_pod(without_names(trained()), 1, 0), 1, 0)
    decision = restart_operator(scene).decide()

    assert kind(decision) == (Claim, (0,), Reason.MEMBERS_CHANGED, False)
    assert isinstance(decision, Claim)
    assert decision.end
    cause = decision.end.cause
    assert (cause.slice, cause.host, cause.message) == (1, 0, "the pod of host 0 of slice 1 was replaced")


def test_no_host_is_named_if_several_pods_were_replaced() -> None:
    scene = drop_pod(drop_pod(without_names(trained()), 1, 0), 1, 1)
    decision = restart_operator(scene).decide()

    assert isinstance(decision, Claim)
    assert decision.end
    cause = decision.end.cause
    assert (cause.slice, cause.host, cause.message) == (None, None, "pods of the world were replaced")


def test_reports_of_another_world_name_no_members() -> None:
    """A pod that was a member of an earlier world may still report."""
    scene = drop_pod(without_names(trained()), 1, 0)
    member = scene.news["pod-1-0"]
    former = member.report.model_copy(update={"pod_uid": "former", "generation": member.report.generation - 1})
    scene.news["former"] = replace(member, report=former)

    assert kind(scene.decide()) == (Claim, (0,), Reason.POD_DELETED, False)


def test_a_world_with_an_invalid_time_is_recognised_by_the_pods_of_its_hosts() -> None:
    scene = without_names(trained())
    scene.news = {}
    assert scene.status.world
    world = scene.status.world.model_copy(update={"since": "lately"})
    scene.status = scene.status.model_copy(update={"world": world})

    assert scene.see().world.find_member("pod-1-0")  # type: ignore[union-attr]
