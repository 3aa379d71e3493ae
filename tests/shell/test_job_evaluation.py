"""The pure part of a reconcile: when it is repeated, and its parts."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import job_manifest, jobset_manifest, make_plan
from tests.support.replica_scenes import ReplicaScene, replicated
from tests.support.scenes import Scene, trained
from trainingjob_api.status.world_status import AdmissionBackOff
from trainingjob_operator.core.decide.decisions import RunReplicas, Wait
from trainingjob_operator.core.observe.pods import PodReader
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell import job_evaluation
from trainingjob_operator.shell.job_evaluation import (
    FORMING_REQUEUE_SECONDS,
    IDLE_REQUEUE_SECONDS,
    NEW_BASE_SECONDS,
    SILENT_BASE_SECONDS,
    WAITING_REQUEUE_SECONDS,
    evaluate,
    postponable_seconds,
    requeue_delay,
    run_part,
)


def test_a_back_off_for_quota_ends_in_time() -> None:
    scene = Scene(plan=make_plan(2, 4, scheduling={"queueName": "research"}))
    scene.status = scene.status.model_copy(
        update={"admission": AdmissionBackOff(releases=1, released=format_time(scene.now))}
    )
    decision = scene.decide()

    assert isinstance(decision, Wait)
    assert decision.reason == Reason.QUOTA_BACK_OFF
    assert requeue_delay(scene.plan, scene.see(), decision, scene.status, scene.now) == WAITING_REQUEUE_SECONDS


@pytest.mark.parametrize(("age", "want"), [(2.0, WAITING_REQUEUE_SECONDS), (31.0, IDLE_REQUEUE_SECONDS)])
def test_kueue_s_reason_is_read_again_while_the_jobset_is_new(age: float, want: float) -> None:
    """Kueue writes the reason after it has created the Workload, and the operator may have read in between."""
    scene = Scene(plan=make_plan(2, 4, scheduling={"queueName": "nowhere"}))
    scene.jobsets[0] = jobset_manifest(scene.plan, 0, suspend=True)
    scene.jobsets[0]["metadata"]["creationTimestamp"] = format_time(scene.now - timedelta(seconds=age))
    decision = scene.decide()

    assert requeue_delay(scene.plan, scene.see(), decision, scene.status, scene.now) == want


@pytest.mark.parametrize("is_large", [True, False])
async def test_hosts_are_answered_between_the_parts_of_a_large_evaluation(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []

    def record(name: str) -> None:
        part = getattr(job_evaluation, name)

        def run(*arguments: Any, **options: Any) -> Any:
            parts.append(name)
            asyncio.get_running_loop().call_soon(parts.append, "answer")
            return part(*arguments, **options)

        monkeypatch.setattr(job_evaluation, name, run)

    for name in ("observe", "decide", "next_status"):
        record(name)
    scene = trained()
    children, heartbeats, reader = scene.children(), scene.heartbeats(), PodReader() if is_large else None
    _, decision, status = await evaluate(
        scene.plan,
        job_manifest(scene.plan),
        scene.status,
        children,
        heartbeats,
        scene.now,
        ("a note",),
        None,
        reader,
    )

    answer = ["answer"] * is_large
    assert parts == ["observe", *answer, "decide", *answer, "next_status", *answer]
    assert decision == scene.decide()
    assert "a note" in str(status.conditions)


async def test_pause_is_twice_as_long_as_the_part_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, pauses, now = asyncio.get_running_loop(), [], [100.0]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def part() -> str:
        now[0] += 0.125
        return "done"

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        patch.setattr(loop, "time", lambda: now[0])
        results = [await run_part(part, pauses=True), await run_part(part, pauses=False)]

    assert results == ["done", "done"]
    assert pauses == [0.25]


async def test_replicas_are_evaluated_as_often_as_the_slice_that_changes_first() -> None:
    scene = ReplicaScene(plan=replicated(make_plan())).start(0, 1)
    del scene.pods[1, 0]
    children, heartbeats = scene.children(), scene.heartbeats()
    seen, decision, status = await evaluate(
        scene.plan, job_manifest(scene.plan), scene.status, children, heartbeats, scene.now, (), None
    )

    assert isinstance(decision, RunReplicas)
    assert [one.ended is None for one in status.replicas] == [True, False]
    assert requeue_delay(scene.plan, seen, decision, status, scene.now) == FORMING_REQUEUE_SECONDS


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"scheduling": {"queueName": "research"}}, NEW_BASE_SECONDS),
        ({}, SILENT_BASE_SECONDS),
        ({"suspend": True}, IDLE_REQUEUE_SECONDS),
    ],
    ids=["queue", "no queue", "suspended"],
)
def test_a_new_base_jobset_is_looked_at_without_an_event(spec: dict[str, Any], want: float) -> None:
    scene = Scene(plan=make_plan(**spec))
    decision = Wait(Reason.WAITING_FOR_PODS, "")

    assert requeue_delay(scene.plan, scene.see(), decision, scene.status, scene.now) == want


def test_world_that_trains_needs_no_reconcile_until_it_could_hang() -> None:
    scene = trained()
    decision = scene.decide()
    assert isinstance(decision, Wait)
    assert postponable_seconds(scene.plan, scene.see(), decision) == WAITING_REQUEUE_SECONDS

    assert postponable_seconds(scene.plan, scene.see(), Wait(Reason.WAITING_FOR_PODS, "")) == 0.0
    assert postponable_seconds(scene.plan, Scene(plan=make_plan()).see(), decision) == 0.0


def test_replicas_need_no_reconcile_for_as_long_as_each_of_them() -> None:
    scene = ReplicaScene(plan=replicated(make_plan())).start(0, 1)
    calm = scene.decide()
    assert isinstance(calm, RunReplicas)
    assert postponable_seconds(scene.plan, scene.see(), calm) == WAITING_REQUEUE_SECONDS

    del scene.pods[1, 0]
    ended = scene.decide()
    assert isinstance(ended, RunReplicas)
    assert postponable_seconds(scene.plan, scene.see(), ended) == 0.0
