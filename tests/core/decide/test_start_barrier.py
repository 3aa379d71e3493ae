"""The start barrier of jobs without a queue: a part of the minimum is released, and no two jobs block each other."""

import json
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import NAME, UID, Manifest, job_manifest, make_plan, pod_manifest, ready_node
from tests.support.scenes import Scene, kind, set_pod
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.child_maintenance import CreateBase, CreateSlice, DeleteJobSet
from trainingjob_operator.core.decide.decisions import Claim, Wait
from trainingjob_operator.core.decide.start_barrier import max_start_back_off
from trainingjob_operator.core.manifests import Children
from trainingjob_operator.core.names import base_jobset
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.observed import Observed, observe
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time

TIMEOUT = 900.0
TICK_SECONDS = 30.0
"""Seconds between two looks at the jobs of a crowd."""
WORK_TICKS = 4
"""Ticks for which a job of a crowd trains."""
MAX_TICKS = 4000
SPLIT_SEED = 0
"""Seed with which each of two jobs gets a part of the nodes."""


def unschedulable(scene: Scene, *hosts: tuple[int, int], settled: float = 0.0) -> Scene:
    """Let the scheduler find no node for some hosts, since a number of seconds; all pods are that old."""
    changed = format_time(scene.now - timedelta(seconds=settled))
    for place, pod in scene.pods.items():
        pod["metadata"]["creationTimestamp"] = changed
        status = "False" if place in hosts else "True"
        condition = {"type": "PodScheduled", "status": status, "lastTransitionTime": changed}
        if place in hosts:
            pod["spec"] = {}
            condition |= {"reason": "Unschedulable", "message": "0/4 nodes are available"}
            set_pod(scene, *place, phase="Pending", podIP="", containerStatuses=[])
        set_pod(scene, *place, conditions=[condition])
    return scene


def is_released(scene: Scene) -> bool:
    return any(isinstance(chore, DeleteJobSet) for chore in scene.chores())


def partly_scheduled(settled: float = TIMEOUT, **scheduling: object) -> Scene:
    return unschedulable(Scene(plan=make_plan(2, 2, scheduling=scheduling)).place(0, 1), (1, 1), settled=settled)


SCENES = {
    "after the timeout": (partly_scheduled, True),
    "before half of it": (lambda: partly_scheduled(TIMEOUT / 2 - 1.0), False),
    "after a shorter one": (lambda: partly_scheduled(60.0, startTimeout="1m"), True),
    "it holds nothing": (
        lambda: unschedulable(Scene(plan=make_plan(2, 2)).place(0, 1), (0, 0), (0, 1), (1, 0), (1, 1), settled=TIMEOUT),
        False,
    ),
    "all pods have nodes": (lambda: unschedulable(Scene(plan=make_plan(2, 2)).place(0, 1), settled=TIMEOUT), False),
    "an elastic job has its minimum": (
        lambda: unschedulable(Scene(plan=make_plan(1, 2)).place(0, 1), (1, 1), settled=TIMEOUT),
        False,
    ),
    "a pod is new": (
        lambda: set_new(partly_scheduled(), 0, 0),
        False,
    ),
    "Kueue has admitted it": (lambda: partly_scheduled(queueName="research"), False),
}


def set_new(scene: Scene, slice_number: int, host: int) -> Scene:
    scene.pod(slice_number, host)["metadata"]["creationTimestamp"] = format_time(scene.now)
    return scene


@pytest.mark.parametrize(("build", "want"), SCENES.values(), ids=SCENES)
def test_a_part_of_the_minimum_is_released_after_the_timeout(build, want: bool) -> None:
    assert is_released(build()) is want


def test_a_release_is_reported_and_counts_no_failure() -> None:
    scene = partly_scheduled()
    (event,) = scene.happenings()
    assert kind(scene.step()) == (Wait, Reason.START_BACK_OFF)

    assert (event.reason, event.is_warning) == (Reason.START_BACK_OFF, True)
    assert event.message.startswith(
        "the cluster scheduled only a part of the pods of 2 slices within `spec.scheduling.startTimeout` (15m); "
        "released all pods for other jobs, and requests them again at "
    )
    condition = next(one for one in scene.status.conditions if one.type == "Queued")
    assert (condition.reason, condition.message) == (Reason.START_BACK_OFF, event.message)
    assert scene.status.phase == "Queued"
    assert scene.status.restarts.total == 0

    scene.jobsets.clear()
    scene.pods.clear()
    assert scene.happenings() == ()
    assert scene.chores() == ()
    assert kind(scene.step(10.0)) == (Wait, Reason.WAITING_FOR_SLICES)
    assert scene.chores() == (CreateBase(),)
    assert scene.status.admission is not None
    assert scene.status.admission.releases == 1


def test_a_job_that_lost_its_world_waits_for_the_timeout_again() -> None:
    scene = Scene(plan=make_plan(2, 2)).form(0, 1)
    scene.pods[1, 1] = pod_manifest(scene.plan, 1, 1, uid="uid-new")
    unschedulable(scene, (1, 1), settled=TIMEOUT)
    scene.step()
    assert scene.status.attempts[-1].ended

    assert not is_released(scene)
    scene.now += timedelta(seconds=TIMEOUT)
    assert is_released(scene)


def test_the_back_off_grows_beyond_the_timeout() -> None:
    assert max_start_back_off(make_plan(scheduling={"startTimeout": "1m"})) == 300.0
    assert max_start_back_off(make_plan()) == 2 * TIMEOUT


class Contender(Scene):
    """A job of a crowd, with a UID that differs from those of the others."""

    number: int = 0
    work_left: int = WORK_TICKS

    @property
    def uid(self) -> str:
        """Return the UID of the job."""
        return UID[:-2] + f"{self.number:02}"

    def see(self) -> Observed:
        """Return the observation, with the job's own UID in all objects."""
        job = job_manifest(self.plan)
        children = Children(
            jobsets=tuple(map(self.own, self.jobsets.values())),
            pods=tuple(map(self.own, self.pods.values())),
            nodes=self.nodes,
        )
        return observe(self.plan, self.own(job), self.status, children, HeartbeatState(self.news, 1000.0), self.now)

    def own(self, manifest: Manifest) -> Manifest:
        text = json.dumps(manifest).replace(base_jobset(NAME, UID), base_jobset(NAME, self.uid))
        owned: Manifest = json.loads(text.replace(UID, self.uid))
        return owned

    def request(self) -> None:
        """Create the pods of the minimum, without nodes."""
        count = self.plan.num_base_slices
        self.place(*range(count))
        unschedulable(self, *((number, host) for number in range(count) for host in range(2)))

    def take(self, place: tuple[int, int], node: str) -> None:
        """Schedule a pod."""
        self.pod(*place)["spec"] = {"nodeName": node}
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(self.now)}
        set_pod(self, *place, phase="Running", podIP="10.0.0.1", containerStatuses=[{"state": {"running": {}}}])
        set_pod(self, *place, conditions=[condition])
        self.nodes[node] = ready_node(node)

    def taken(self) -> set[str]:
        return {pod["spec"]["nodeName"] for pod in self.pods.values() if "nodeName" in pod["spec"]}

    def release(self) -> None:
        self.pods.clear()
        self.jobsets.clear()
        self.news.clear()

    def look(self) -> None:
        """Let the operator decide and apply its decision: a world trains for `WORK_TICKS`, then releases its nodes."""
        self.now += timedelta(seconds=TICK_SECONDS)
        if self.work_left < WORK_TICKS:
            self.work_left -= 1
            if self.work_left == 0:
                self.release()
            return
        if self.pods and all("nodeName" in pod["spec"] for pod in self.pods.values()):
            self.hear_slice(*range(self.plan.num_base_slices), phase=Phase.IDLE, still=1000.0)
        chores = self.chores()
        if isinstance(self.step(), Claim):
            self.work_left -= 1
        for chore in chores:
            if isinstance(chore, DeleteJobSet):
                self.release()
            elif isinstance(chore, CreateBase):
                self.request()
            else:
                assert isinstance(chore, CreateSlice), chore


def run_crowd(plans: list[Plan], num_nodes: int, seed: int, ticks: int = MAX_TICKS) -> int:
    """Return how many jobs do not finish, if the scheduler places one pending pod after another in random order."""
    random = Random(seed)  # noqa: S311
    jobs = [Contender(plan=plan) for plan in plans]
    for number, job in enumerate(jobs):
        job.number = number
    for _ in range(ticks):
        waiting = [job for job in jobs if job.work_left]
        if not waiting:
            break
        for job in random.sample(waiting, len(waiting)):
            job.look()
        pending = [(job, place) for job in jobs for place, pod in job.pods.items() if "nodeName" not in pod["spec"]]
        free = {f"node-{one}" for one in range(num_nodes)}.difference(*(job.taken() for job in jobs))
        for (job, place), node in zip(random.sample(pending, len(pending)), sorted(free), strict=False):
            job.take(place, node)
    return sum(job.work_left > 0 for job in jobs)


@pytest.mark.thorough
@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(2, 4), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_competing_jobs_all_finish(num_jobs: int, spare_nodes: int, seed: int) -> None:
    plan = make_plan(2, 2, scheduling={"startTimeout": "2m"})

    assert run_crowd([plan] * num_jobs, 4 + spare_nodes, seed) == 0


@pytest.mark.thorough
def test_competing_jobs_without_the_barrier_block_each_other() -> None:
    plan = make_plan(2, 2, scheduling={"startTimeout": "99999h"})

    assert run_crowd([plan] * 2, 4, seed=SPLIT_SEED, ticks=60) == 2
