"""The leader is killed, paused or ends: another operator leads in time, training continues, and two never write.

The audit log of the API server has the times: those of the requests that acquire the Lease and label the new leader.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from signal import SIGCONT, SIGSTOP

import pytest

from e2e.api_audit import Request, parse
from e2e.cluster.audit import WRITES
from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.processes import Process
from e2e.product import SYSTEM_NAMESPACE, Job, Manifest, Product, load_example, wait_until
from e2e.status import condition, generation_of, is_full, step_of, steps_trained
from trainingjob_operator.shell.leader_election import (
    LEASE_DURATION_SECONDS,
    RENEW_DEADLINE_SECONDS,
    RETRY_PERIOD_SECONDS,
)

pytestmark = pytest.mark.soak

PROGRAM = "trainingjob-operator"
PROMISED = timedelta(seconds=10)
"""Time within which a lost leader is replaced, as docs/operations.md states."""
LEASE_LIMIT = timedelta(seconds=LEASE_DURATION_SECONDS + 2 * RETRY_PERIOD_SECONDS)
"""Longest time from the loss to the new leader's request: a standby sees the last renewal up to one retry late, and
tries again up to one retry after the Lease has expired. The rest of `PROMISED` is for requests on a busy machine."""
CLEAN_LIMIT = timedelta(seconds=RETRY_PERIOD_SECONDS + 1)
"""Longest time from the release of the Lease to the next leader: one retry, and a second for requests."""
TIMEOUT_SECONDS = 240
OBSERVED_SECONDS = 15
"""Time after the pause in which the old leader would write: longer than all its periods but that of idle jobs."""
NOT_OBJECTS = ("tokenreviews", "subjectaccessreviews")
"""Resources whose creation asks the API server a question and stores nothing."""


@dataclass(frozen=True)
class Takeover:
    """A change of the leader: its name, and when the Lease was acquired and agents were routed to it."""

    leader: str
    acquired_at: datetime
    routed_at: datetime


@pytest.fixture
def local(cluster: Cluster) -> LocalCluster:
    """The local cluster, whose pods are processes of this machine and whose API server has an audit log."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("only the local cluster lets us signal processes of a pod and read the audit log")
    return cluster


@pytest.fixture
def job(product: Product, local: LocalCluster) -> Iterator[Job]:
    """A job that trains on all slices under two operators. No fault of the leader may disturb it."""
    del local
    with product.namespace("journey-leader") as namespace:
        manifest = load_example("demo", training__steps=1_000_000, checkpoint__uri="/shared/leader")
        job = product.submit(namespace, manifest, name="leader")
        before = job.wait(
            "steps on all slices", lambda status: is_full(status) and steps_trained(status) > 0, TIMEOUT_SECONDS
        )
        product.scale_operator(2)
        try:
            yield job
            trained = step_of(job.status())
            after = job.wait("a later step", lambda status: step_of(status) > trained, TIMEOUT_SECONDS)
            assert generation_of(after) == generation_of(before)
            assert after["restarts"] == before["restarts"]
            assert len(after["attempts"]) == len(before["attempts"]), "an attempt that goes on has lost no step"
        finally:
            product.scale_operator(1)
            job.delete()


def find_leader(product: Product) -> Manifest:
    """Return the leader's pod."""
    name = product.leader()
    return next(pod for pod in product.operator_pods() if pod["metadata"]["name"] == name)


def list_processes(local: LocalCluster, pod: Manifest) -> list[Process]:
    """Return the operator's processes in a pod."""
    found = local.pod_processes(pod["spec"]["nodeName"], pod["metadata"]["uid"], PROGRAM)
    assert found, f"the pod has no process of {PROGRAM}"
    return found


@contextmanager
def paused(processes: Sequence[Process]) -> Iterator[None]:
    """Stop processes without a signal that they could handle, while the context lasts."""
    for process in processes:
        process.send_signal(SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(SIGCONT)


def list_requests(local: LocalCluster, since: datetime) -> list[Request]:
    return [parse(event) for event in local.read_requests(since)]


def holder_of(request: Request) -> str | None:  # None: the request writes no Lease
    """Return the holder that a request wrote into the Lease; empty: it released the Lease."""
    if request.resource != "leases" or not request.is_successful or "spec" not in request.body:
        return None
    return str(request.body["spec"].get("holderIdentity") or "")


def wait_for_takeover(product: Product, local: LocalCluster, lost: str, since: datetime) -> Takeover:
    """Wait until agents reach another leader."""
    leader = wait_until(
        "another leader that agents reach",
        lambda: name if (name := product.leader()) not in ("", lost) else None,
        timeout=2 * PROMISED.total_seconds(),
    )
    requests = list_requests(local, since)
    acquired = next(request.at for request in requests if holder_of(request) == leader)
    routed = next(
        request.at
        for request in requests
        if (request.verb, request.resource, request.name) == ("patch", "pods", leader)
    )
    return Takeover(leader, acquired, routed)


def print_takeover(what: str, start: datetime, takeover: Takeover) -> None:
    acquired, routed = takeover.acquired_at - start, takeover.routed_at - start
    print(
        f"{what}: Lease acquired after {acquired.total_seconds():.1f} s, agents routed {routed.total_seconds():.1f} s"
    )


def test_killed_leader_is_replaced_within_ten_seconds(product: Product, local: LocalCluster, job: Job) -> None:
    del job  # its fixture checks that nothing disturbs it
    pod = find_leader(product)
    lost = pod["metadata"]["name"]
    processes = list_processes(local, pod)
    killed = datetime.now(UTC)
    for process in processes:
        process.kill()
    # Now, so that the kubelet restarts no container: it would lead again under the name of the pod.
    local.kubectl("delete", "pod", lost, "-n", SYSTEM_NAMESPACE, "--grace-period=0", "--force", "--wait=false")

    takeover = wait_for_takeover(product, local, lost, killed)

    print_takeover("leader killed", killed, takeover)
    since = [holder_of(request) for request in list_requests(local, killed) if request.at <= takeover.acquired_at]
    assert "" not in since, "a process that is killed cannot release the Lease"
    assert takeover.acquired_at - killed > timedelta(seconds=RENEW_DEADLINE_SECONDS), "a Lease in use was taken"
    assert takeover.acquired_at - killed < LEASE_LIMIT + timedelta(seconds=1)
    assert takeover.routed_at - killed < PROMISED


def test_leader_that_ends_releases_the_lease(product: Product, local: LocalCluster, job: Job) -> None:
    del job
    lost, ended = product.leader(), datetime.now(UTC)
    local.kubectl("delete", "pod", lost, "-n", SYSTEM_NAMESPACE, "--wait=false")

    takeover = wait_for_takeover(product, local, lost, ended)

    print_takeover("leader ended", ended, takeover)
    released = next(request.at for request in list_requests(local, ended) if holder_of(request) == "")
    assert timedelta() < takeover.acquired_at - released < CLEAN_LIMIT


@pytest.mark.parametrize("seconds", [20, 60])
def test_paused_leader_writes_nothing_when_it_continues(
    seconds: int, product: Product, local: LocalCluster, job: Job
) -> None:
    """The same process continues after 20 s. The kubelet kills one that is paused for a minute, as its probes fail."""
    pod = find_leader(product)
    old = pod["metadata"]["name"]
    processes, start = list_processes(local, pod), datetime.now(UTC)
    with paused(processes):
        takeover = wait_for_takeover(product, local, old, start)
        trained = step_of(job.status())
        end = start + timedelta(seconds=seconds)
        threading.Event().wait((end - datetime.now(UTC)).total_seconds())
        assert step_of(job.status()) > trained, "the new leader writes the progress meanwhile"
    continued = datetime.now(UTC)

    wait_until("the old leader to be ready", lambda: is_ready(product, old) or None, timeout=120)
    threading.Event().wait(OBSERVED_SECONDS)

    print_takeover(f"leader paused for {seconds} s", start, takeover)
    print(f"the old leader {describe_return(product, old)}")
    assert takeover.acquired_at - start < LEASE_LIMIT + timedelta(seconds=1)
    assert takeover.routed_at - start < PROMISED
    requests = list_requests(local, start)
    later = [request for request in requests if request.pod == old and request.at > takeover.acquired_at]
    assert [str(request) for request in later if request.verb in WRITES and request.resource not in NOT_OBJECTS] == []
    assert any(request.at > continued for request in later), "the old leader reads again, as a standby does"
    assert (product.leader(), is_ready(product, old)) == (takeover.leader, True)


def is_ready(product: Product, name: str) -> bool:
    statuses = [pod["status"] for pod in product.operator_pods() if pod["metadata"]["name"] == name]
    return any(condition(status, "Ready").get("status") == "True" for status in statuses)


def describe_return(product: Product, name: str) -> str:
    """Return what became of a paused operator."""
    (status,) = [pod["status"] for pod in product.operator_pods() if pod["metadata"]["name"] == name]
    (container,) = status["containerStatuses"]
    ended = container.get("lastState", {}).get("terminated")
    return f"was restarted by the kubelet, exit code {ended['exitCode']}" if ended else "is a standby"
