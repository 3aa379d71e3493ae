"""Elastic jobs under the real Kueue: lost, evicted and preempted slices, growth, and jobs that compete for quota."""

import os
from datetime import UTC, datetime

import pytest

from e2e.cluster.interface import Cluster
from e2e.kueue.competitor import make_competitor
from e2e.kueue.installation import NUM_SLICES, count_used_quota, set_quota
from e2e.kueue.queued_jobs import (
    GROW_SECONDS,
    SHRINK_SECONDS,
    START_SECONDS,
    URGENT,
    attempts_after,
    evictions,
    jobsets,
    lose_slice,
    pod_of,
    set_active,
    trains_on,
)
from e2e.product import wait_until
from e2e.status import step_of

pytestmark = pytest.mark.soak

MAX_FREED_QUOTA_SECONDS = 45
"""Seconds from freed quota to the larger world: the pods start on two busy cores."""
MORE_STEPS = 10
"""Steps that the remaining slices train while a slice is lost."""
PREEMPTIONS = int(os.environ.get("PREEMPTIONS", "3"))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_slice_is_evicted_alone(train, cluster: Cluster, lost: int) -> None:
    """Lose a slice of the minimum for longer than `recoveryTimeout`. Slice 0 has the base JobSet of the job."""
    job, _ = train(f"lost-{lost}")
    others = [number for number in range(NUM_SLICES) if number != lost]
    pods = {number: pod_of(job, number)["metadata"]["uid"] for number in others}
    children = {number: jobset["metadata"]["uid"] for number, jobset in jobsets(job).items()}
    evicted = evictions(job)

    with lose_slice(cluster, job, lost):
        wait_until("the quota to be released", lambda: count_used_quota(cluster) == NUM_SLICES - 1 or None, 20)
        status = job.wait(f"training without slice {lost}", trains_on(NUM_SLICES - 1), SHRINK_SECONDS)
        assert status["world"]["slices"] == others
        job.wait_for_step(step_of(status) + MORE_STEPS, SHRINK_SECONDS)
        assert {number: pod_of(job, number)["metadata"]["uid"] for number in others} == pods
        assert {number: jobset["metadata"]["uid"] for number, jobset in jobsets(job).items()} == children
        assert [number for number, jobset in jobsets(job).items() if jobset["spec"].get("suspend")] in ([lost], [])
        assert {number: time for number, time in evictions(job).items() if evicted.get(number) != time}.keys() == {lost}
    assert status["restarts"]["counted"] == 0
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
    assert grown["attempts"][-1].get("lostSteps", 0) == 0
    assert {number: pod_of(job, number)["metadata"]["uid"] for number in others} == pods


def test_evicted_slices_save_and_return(train) -> None:
    job, _ = train("elastic")

    set_active(job, (2, 3), active=False)
    shrunk = job.wait("training on the minimum", trains_on(2), SHRINK_SECONDS)
    assert all(attempt.get("lostSteps", 0) <= 1 for attempt in shrunk["attempts"])
    assert shrunk["restarts"]["total"] == 0
    assert "Kueue evicted it" in shrunk["attempts"][-2]["cause"]["message"]

    set_active(job, (2, 3), active=True)
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
    assert grown["restarts"]["total"] == 0
    assert step_of(grown) >= step_of(shrunk)


def test_slices_that_are_admitted_together_join_at_once(submit, cluster: Cluster) -> None:
    set_quota(cluster, 2)
    job = submit("growing", 2, NUM_SLICES)
    before = job.wait("training on the minimum", trains_on(2), START_SECONDS)

    freed = datetime.now(UTC)
    set_quota(cluster, NUM_SLICES)
    grown = job.wait("training on all slices", trains_on(NUM_SLICES), GROW_SECONDS)
    [attempt] = attempts_after(grown, before["world"]["generation"])
    seconds = (datetime.fromisoformat(attempt["started"]) - freed).total_seconds()
    print(f"world of all slices {seconds:.1f} s after the quota was freed")
    assert seconds < MAX_FREED_QUOTA_SECONDS
    assert attempt["lostSteps"] == 0


def test_a_job_of_a_higher_priority_preempts_elastic_slices_alone(submit, train) -> None:
    job, before = train("victim")

    urgent = submit("urgent", 2, 2, steps=30, priorityClassName=URGENT)
    shrunk = job.wait("training on the minimum", trains_on(2), SHRINK_SECONDS)
    assert shrunk["world"]["slices"] == [0, 1]
    assert "Kueue preempted it" in shrunk["attempts"][-2]["cause"]["message"]
    urgent.wait_for_phase("Succeeded", timeout=300)
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)

    assert [attempt["slices"] for attempt in attempts_after(grown, before["world"]["generation"])] == [2, NUM_SLICES]
    assert all(attempt.get("lostSteps", 0) <= 1 for attempt in grown["attempts"])
    assert grown["restarts"]["total"] == 0


def test_repeated_preemptions_lose_no_steps(train, cluster: Cluster, queue_namespace: str) -> None:
    """Preempt the elastic slices of one job `PREEMPTIONS` times. The output has one line per preemption."""
    job, status = train("preempted")
    print("preemption  lost steps  seconds to shrink  seconds to grow  failures")
    for number in range(1, PREEMPTIONS + 1):
        generation = status["world"]["generation"]
        start = datetime.now(UTC)
        with make_competitor(cluster, queue_namespace, f"competitor-{number}", num_pods=2, priority=URGENT):
            job.wait("training on the minimum", trains_on(2), SHRINK_SECONDS)
        freed = datetime.now(UTC)
        status = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
        attempts = attempts_after(status, generation)
        lost = sum(attempt.get("lostSteps", 0) for attempt in attempts)
        shrunk, grown = (datetime.fromisoformat(attempts[index]["started"]) for index in (0, -1))
        seconds = f"{(shrunk - start).total_seconds():17.1f}  {(grown - freed).total_seconds():15.1f}"
        print(f"{number:10}  {lost:10}  {seconds}  {status['restarts']['total']:8}")
        assert lost <= 1
        assert status["restarts"]["total"] == 0


@pytest.mark.parametrize(("fewest", "num_pods"), [(NUM_SLICES, 1), (NUM_SLICES - 1, 2)], ids=["fixed size", "elastic"])
def test_a_preempted_minimum_saves_and_resumes_without_a_failure(
    submit, cluster: Cluster, queue_namespace: str, fewest: int, num_pods: int
) -> None:
    """Preempt more slices than the job can lose. It releases its quota, and resumes once the other job has ended."""
    set_quota(cluster, NUM_SLICES)
    job = submit(f"minimum-{fewest}", fewest, NUM_SLICES)
    before = job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS)

    with make_competitor(cluster, queue_namespace, "competitor", num_pods=num_pods, priority=URGENT):
        stopped = job.wait("the end of the world", lambda status: "ended" in status["attempts"][-1], SHRINK_SECONDS)
        wait_until("the quota to be released", lambda: count_used_quota(cluster) == num_pods or None, SHRINK_SECONDS)
    resumed = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)

    assert stopped["restarts"]["total"] == resumed["restarts"]["total"] == 0
    attempts = attempts_after(resumed, before["world"]["generation"] - 1)
    assert "Kueue preempted it" in attempts[0]["cause"]["message"]
    assert sum(attempt.get("lostSteps", 0) for attempt in attempts) <= 1
    assert all(attempt["firstStep"] >= step_of(stopped) - 1 for attempt in attempts[1:])


def test_two_jobs_that_need_more_than_the_quota_both_finish(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    jobs = [submit(name, 3, NUM_SLICES, steps=30) for name in ("first", "second")]

    for job in jobs:
        job.wait_for_phase("Succeeded", timeout=300)
