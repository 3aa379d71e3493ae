"""Which slices the next world has where some of them have new pods, which a slow machine may report early or late."""

from collections.abc import Callable

import pytest

from tests.support.builders import failure, make_plan, pod_manifest
from tests.support.scenes import Scene, kind, trained
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_operator.core.decide.decisions import Claim, EndWorld
from trainingjob_operator.core.reasons import Reason


def replace_pods(scene: Scene, *, standby: bool, hosts: tuple[int, ...] = (0, 1), **changes: object) -> Scene:
    """Replace the pods of slice 1 by new ones that report."""
    for host in hosts:
        scene.pods[1, host] = pod_manifest(scene.plan, 1, host, uid=f"new-1-{host}")
        scene.hear(1, host, generation=0, phase=Phase.IDLE, standby=standby, **changes)
    return scene


def preempted(scene: Scene | None = None) -> Scene:
    """Return a world that has left because the pods of slice 1 were deleted."""
    return (scene or trained()).hear_slice(0, 1, phase=Phase.LEFT)


def killed() -> Scene:
    """Return a world of which slice 1 was lost at once."""
    return trained()


def crashed(standby: bool) -> Scene:
    """Return a world whose program failed on one host; its pods are alive, and that host may have no standby."""
    crash = failure(reason=FailureReason.CRASH)
    return trained().hear(1, 0, phase=Phase.FAILED, failure=crash, still=0.1, standby=standby)


def fixed() -> Scene:
    return Scene(plan=make_plan(2, 2)).form(0, 1)


CASES: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "a preempted slice whose new pods have not reported": (
        lambda: preempted().hear_slice(0, phase=Phase.LEFT).delete_pod(1, 0).delete_pod(1, 1),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "a preempted slice whose new pods import": (
        lambda: replace_pods(preempted(), standby=False),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "a preempted slice of which one new pod imports": (
        lambda: replace_pods(replace_pods(preempted(), standby=True), standby=False, hosts=(1,)),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "a preempted slice whose new pods are ready: the world took long to leave": (
        lambda: replace_pods(preempted(), standby=True),
        (Claim, (0, 1), Reason.RESIZED, False),
    ),
    "a killed slice whose new pods import": (
        lambda: replace_pods(killed(), standby=False),
        (Claim, (0,), Reason.POD_DELETED, False),
    ),
    "a killed slice whose new pods are ready": (
        lambda: replace_pods(killed(), standby=True),
        (Claim, (0, 1), Reason.POD_DELETED, False),
    ),
    "a killed host whose new pod imports": (
        lambda: replace_pods(killed(), standby=False, hosts=(0,)),
        (Claim, (0,), Reason.POD_DELETED, False),
    ),
    "a program that failed in a pod that lives": (lambda: crashed(standby=True), (Claim, (0, 1), "Crash", True)),
    "the same, and the next standby imports": (lambda: crashed(standby=False), (Claim, (0, 1), "Crash", True)),
    "a job that needs the slice whose new pods import": (
        lambda: replace_pods(preempted(fixed()), standby=False),
        (Claim, (0, 1), Reason.RESIZED, False),
    ),
    "a job that needs the slice whose new pods have not reported": (
        lambda: preempted(fixed()).silence(1),
        (EndWorld, Reason.WAITING_FOR_SLICES),
    ),
}


@pytest.mark.parametrize(("scene", "want"), CASES.values(), ids=CASES.keys())
def test_the_next_world_waits_for_no_new_pod_that_imports(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want
