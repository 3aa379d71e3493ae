"""Nodes that caused the end of worlds, and their exclusion after a repeated failure."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.builders import make_plan, pod_manifest
from tests.support.scenes import Scene, claim, drop_pod, fail, kind, lose_node, trained
from trainingjob_api.protocol import Diagnostics, FailureReason, Phase, ProcessState
from trainingjob_operator.core.decide.child_maintenance import CreateSlice, DeleteJobSet
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld
from trainingjob_operator.core.diagnose.bad_nodes import FAULT_LIFETIME, MAX_NODES, SEARCH_SECONDS
from trainingjob_operator.core.names import AVOIDED_NODES_ANNOTATION
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time


def crash(scene: Scene, slice_number: int, host: int) -> Scene:
    """Let a host fail with another message each time, and a new world save a step."""
    assert scene.status.world
    words = f"ValueError: number {scene.status.world.generation}"
    fail(scene, slice_number, host, message=words)
    scene.step(1.0)
    scene.hear_slice(*scene.see().world.slices, failure=None)  # type: ignore[union-attr]
    scene.train(step=11, restored=10, committed=11, failure=None).step()
    return scene


def known(scene: Scene) -> list[tuple[str, int]]:
    return [(one.node, one.faults) for one in scene.status.nodes]


def alike(scene: Scene) -> Scene:
    """Place all pods on one node."""
    for pod in scene.pods.values():
        pod["spec"]["nodeName"] = "node-0-0"
    return scene


def hung(scene: Scene, *behind: int) -> Scene:
    """Let all hosts stall, one of which reports less progress than the others."""
    for slice_number, host in ((0, 0), (0, 1), (1, 0), (1, 1)):
        entered = 11 if (slice_number, host) == behind else 12
        clue = Diagnostics(state=ProcessState.SLEEPING, cores=0.0, entered=entered, newest=f"step {entered}")
        scene.hear(slice_number, host, still=100.0, evidence=clue)
    return scene


ENDS: dict[str, tuple[Callable[[], Scene], list[tuple[str, int]]]] = {
    "a crash": (lambda: fail(trained(), 1, 1), [("node-1-1", 1)]),
    "a node that is not ready": (lambda: lose_node(trained().silence(1), 1, 0), [("node-1-0", 1)]),
    "a host that hangs": (lambda: hung(trained(), 1, 1), [("node-1-1", 1)]),
    "a host that hangs on the only node": (lambda: hung(alike(trained()), 1, 1), []),
    "a hang of nobody knows whom": (lambda: hung(trained()), []),
    "crashes on two nodes": (lambda: fail(fail(trained(), 1, 1), 0, 1), []),
    "a slice that falls silent": (lambda: trained().silence(1).hear_slice(0, still=6.0), []),
    "a pod that was deleted": (lambda: drop_pod(trained(), 1, 1), []),
    "bad data": (lambda: fail(trained(), 1, 1, reason=FailureReason.DATA), []),
    "an error that follows from another": (
        lambda: fail(trained(), 1, 1, reason=FailureReason.PEER, still=6.0),
        [],
    ),
    "a world that left": (lambda: trained().hear_slice(0, 1, phase=Phase.LEFT), []),
    "a job that has one node only": (lambda: fail(alike(trained()), 1, 1), []),
}


@pytest.mark.parametrize(("scene", "want"), ENDS.values(), ids=ENDS.keys())
def test_failures_that_count_against_a_node(scene: Callable[[], Scene], want: list[tuple[str, int]]) -> None:
    at = scene()
    at.step()

    assert known(at) == want


def bad(plan: Plan | None = None, slice_number: int = 1) -> Scene:
    """Return a job of which two worlds ended for host 1 of a slice, and the next one trains."""
    scene = Scene(plan=plan or make_plan()).form(0, 1)
    return crash(crash(scene, slice_number, 1), slice_number, 1)


def test_second_failure_excludes_the_slice_from_the_next_world() -> None:
    scene = crash(trained(), 1, 1)
    assert scene.status.world
    assert scene.status.world.slices == (0, 1)
    fail(scene, 1, 1, message="other")
    reported = [(one.is_warning, one.message) for one in scene.happenings() if one.reason == Reason.BAD_NODE]

    assert claim(scene).world.slices == (0,)
    words = "node node-1-1 is bad: it alone ended 2 worlds within a day of service. Last fault: Crash: other"
    assert reported == [(True, f"{words}. The operator recreates its slice on another node")]
    scene.step()
    (held,) = scene.status.nodes
    assert (held.node, held.faults, held.why) == ("node-1-1", 2, "Crash: other")
    assert held.until == format_time(scene.now + FAULT_LIFETIME)
    assert not [one for one in scene.happenings() if one.reason == Reason.BAD_NODE], "it is told once"


def test_its_jobset_goes_and_comes_back_to_other_nodes() -> None:
    scene = bad()
    (away,) = scene.chores()
    assert isinstance(away, DeleteJobSet)
    assert away.jobset.slices == range(1, 2)

    del scene.jobsets[1], scene.pods[1, 0], scene.pods[1, 1]
    assert scene.chores() == (CreateSlice(1, ("node-1-1",)),)


def without_node(scene: Scene, host: int, *, searching: float) -> Scene:
    """Replace a pod of slice 1, for which the scheduler finds no node since a number of seconds."""
    since = format_time(scene.now - timedelta(seconds=searching))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
    uid = f"new-1-{host}-{scene.now:%H%M%S}"
    pod = pod_manifest(scene.plan, 1, host, uid=uid, phase="Pending", podIP="", conditions=[condition])
    pod["metadata"]["creationTimestamp"] = since
    del pod["spec"]["nodeName"]
    scene.pods[1, host] = pod
    return scene


def elsewhere(scene: Scene, *, searching: float = 5.0) -> Scene:
    """Recreate the slice, without a node for it yet. Its JobSet is an hour old."""
    scene.place(1)
    metadata = scene.jobsets[1]["metadata"]
    metadata["annotations"] = {AVOIDED_NODES_ANNOTATION: "node-1-1"}
    metadata["creationTimestamp"] = format_time(scene.now - timedelta(hours=1))
    return without_node(without_node(scene, 0, searching=searching), 1, searching=searching)


def test_a_slice_that_waits_for_another_node_is_left_alone() -> None:
    scene = elsewhere(bad(), searching=SEARCH_SECONDS - 1)
    scene.step()

    assert known(scene) == [("node-1-1", 2)]
    assert scene.chores() == ()


@pytest.mark.parametrize("placed", [False, True], ids=["for no host", "for one of two hosts"])
def test_bad_node_is_used_again_without_another_node(*, placed: bool) -> None:
    scene = elsewhere(bad(), searching=SEARCH_SECONDS + 1)
    if placed:
        scene.pods[1, 0] = pod_manifest(scene.plan, 1, 0, uid="new-1-0")
    scene.step()
    assert known(scene) == []

    (away,) = scene.chores()

    assert isinstance(away, DeleteJobSet)
    del scene.jobsets[1], scene.pods[1, 0], scene.pods[1, 1]
    assert scene.chores() == (CreateSlice(1, (), ("node-1-1",)),), "it is still on probation"


def placed_elsewhere(scene: Scene) -> Scene:
    for host in range(2):
        scene.pods[1, host] = pod_manifest(scene.plan, 1, host, uid=f"new-1-{host}")
        scene.pods[1, host]["spec"]["nodeName"] = f"node-0-{host}"
        scene.hear(1, host)
    return scene


def test_a_slice_that_left_its_bad_node_keeps_avoiding_it_when_it_loses_a_pod() -> None:
    scene = placed_elsewhere(elsewhere(bad()))
    without_node(scene, 1, searching=1.0).step()

    assert known(scene) == [("node-1-1", 2)]
    assert scene.chores() == ()


def test_time_in_a_queue_is_no_search_for_another_node() -> None:
    """Kueue suspends the JobSet before the Job controller deletes its pods."""
    scene = elsewhere(bad(), searching=SEARCH_SECONDS + 1)
    scene.jobsets[1]["spec"]["suspend"] = True
    scene.step()

    assert known(scene) == [("node-1-1", 2)]
    assert scene.chores() == ()


def test_on_another_node_it_is_well_and_the_job_grows_again() -> None:
    scene = placed_elsewhere(elsewhere(bad(), searching=SEARCH_SECONDS + 1))

    assert kind(scene.step()) == (DrainWorld, Reason.GROWING)
    assert known(scene) == [("node-1-1", 2)]
    assert scene.chores() == ()


@pytest.mark.parametrize(
    ("scene", "slice_number"),
    [
        pytest.param(lambda: bad(slice_number=0), 0, id="a slice of the minimum"),
        pytest.param(lambda: bad(make_plan(elastic={"nodeExclusion": "report"})), 1, id="only reported"),
        pytest.param(lambda: bad(make_plan(2, 2)), 1, id="all slices are of the minimum"),
    ],
)
def test_slice_that_cannot_move_stays_and_the_event_requests_action(
    scene: Callable[[], Scene], slice_number: int
) -> None:
    at = scene()
    assert known(at) == [(f"node-{slice_number}-1", 2)]
    assert at.status.world
    assert at.status.world.slices == (0, 1)
    assert at.chores() == ()

    fail(at, slice_number, 1, message="again")
    (reported,) = [one.message for one in at.happenings() if one.reason == Reason.BAD_NODE]
    words = "Last fault: Crash: again. Cordon the node and delete its pod; the new pod gets another node"
    assert reported == f"node node-{slice_number}-1 is bad: it alone ended 3 worlds within a day of service. {words}"


def test_job_keeps_the_slices_of_its_minimum() -> None:
    scene = Scene().form(1)
    crash(crash(scene, 1, 1), 1, 1)

    assert known(scene) == [("node-1-1", 2)]
    assert scene.status.world
    assert scene.status.world.slices == (1,)
    assert not [chore for chore in scene.chores() if isinstance(chore, DeleteJobSet)]


def alone_on_a_bad_node() -> Scene:
    scene = Scene().form(1)
    return crash(crash(scene, 1, 1), 1, 1)


def test_a_world_on_a_bad_node_is_left_for_slices_that_are_well() -> None:
    scene = alone_on_a_bad_node().place(0).hear_slice(0)

    assert scene.step() == DrainWorld(Reason.GROWING, "slice 0 is ready to join")
    assert scene.chores() == (), "it saves first"
    scene.hear_slice(1, phase=Phase.LEFT)
    assert scene.decide() == claim(scene)
    assert claim(scene).world.slices == (0,)
    assert claim(scene).why == "slice 0 is added, slice 1 is removed"


def test_jobset_is_kept_if_its_world_needs_the_bad_node() -> None:
    """Slice 0 is placed and about to report: it would do, but is not ready; the slice on the bad node is."""
    scene = alone_on_a_bad_node().place(0)
    fail(scene, 1, 0, message="elsewhere")

    assert claim(scene).world.slices == (1,)
    assert scene.chores() == ()


def test_a_slice_that_the_minimum_needs_stops_to_search() -> None:
    """Remove slice 0, and let slice 1 wait for a node other than the bad one, where the job could resume."""
    scene = elsewhere(bad())
    drop_pod(scene, 0, 0).step()
    (away,) = [chore for chore in scene.chores() if isinstance(chore, DeleteJobSet)]

    assert away.jobset.slices == range(1, 2)
    assert known(scene) == [("node-1-1", 2)]


@pytest.mark.parametrize("state", ["held by a queue", "about to be scheduled"])
def test_a_slice_that_does_not_search_is_kept_when_its_bad_node_is_needed(state: str) -> None:
    scene = elsewhere(bad())
    if state == "held by a queue":
        scene.jobsets[1]["spec"]["suspend"] = True
    else:
        for host in range(2):
            scene.pods[1, host]["status"]["conditions"] = []
    drop_pod(scene, 0, 0).step()

    assert scene.chores() == ()


def without_world(scene: Scene) -> Scene:
    """Let two worlds fail for hosts of slice 0 without a save: the job pauses without a world until it may resume."""
    for host in range(2):
        scene.train(step=12, restored=11, committed=11).step()
        fail(scene, 0, host, message=f"host {host}").step()
    scene.hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=9.0)
    scene.now += timedelta(seconds=30)
    return scene


def test_first_world_after_a_pause_avoids_the_bad_node() -> None:
    assert kind(without_world(bad()).decide()) == (Claim, (0,), None, None)


def test_only_ready_slice_stays_on_its_bad_node() -> None:
    scene = without_world(bad())
    for host in range(2):
        del scene.news[scene.pods[0, host]["metadata"]["uid"]]
    scene.now += timedelta(seconds=60)
    scene.hear_slice(1, still=90.0)

    assert kind(scene.decide()) == (Claim, (1,), None, None)
    assert scene.chores() == ()


def test_a_day_without_another_clears_a_node() -> None:
    scene = crash(trained(), 1, 1)
    scene.step(FAULT_LIFETIME.total_seconds() - 1)
    assert known(scene) == [("node-1-1", 1)]
    scene.step(1.0)

    assert known(scene) == []


def test_a_clock_that_is_set_back_holds_nothing_against_a_node_for_longer() -> None:
    scene = crash(trained(), 1, 1)
    scene.step(-3600.0)

    assert [one.until for one in scene.status.nodes] == [format_time(scene.now + FAULT_LIFETIME)]


def test_status_keeps_the_newest_bad_nodes() -> None:
    scene = trained()
    for number in range(MAX_NODES + 2):
        scene.pod(1, 1)["spec"]["nodeName"] = f"node-{number}"
        scene.nodes[f"node-{number}"] = scene.nodes["node-1-1"]
        scene.step()
        crash(scene, 1, 1)

    assert [node for node, _ in known(scene)] == [f"node-{number}" for number in range(2, MAX_NODES + 2)]


def test_bad_node_with_an_invalid_time_is_ignored() -> None:
    scene = crash(trained(), 1, 1)
    broken = tuple(one.model_copy(update={"until": "soon"}) for one in scene.status.nodes)
    unproven = tuple(one.model_copy(update={"since": "lately"}) for one in scene.status.probation)
    scene.status = scene.status.model_copy(update={"nodes": broken, "probation": unproven})
    scene.step()

    assert known(scene) == []
    assert scene.status.probation == ()
