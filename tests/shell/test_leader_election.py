"""Two operators never lead at the same time, and another one leads soon after the leader's heartbeats stop."""

import asyncio
import copy
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import NOW
from trainingjob_operator.shell import leader_election
from trainingjob_operator.shell.fenced_cluster import FencedCluster
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ConflictError
from trainingjob_operator.shell.leader_election import (
    LEASE_DURATION_SECONDS,
    MOVE_AFTER_SECONDS,
    MOVE_PERIOD_SECONDS,
    MOVE_WINDOW_SECONDS,
    RENEW_DEADLINE_SECONDS,
    RETRY_PERIOD_SECONDS,
    LeaderElection,
)

pytestmark = pytest.mark.looptime


class Leases:
    """One Lease with versions. `down`: holders that cannot reach it; `slow`: seconds each request takes."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.slow = 0.0
        self.version = 0

    def store(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version)}
        self.stored = {**copy.deepcopy(manifest), "metadata": metadata}
        return copy.deepcopy(self.stored)


class Client:
    """One operator's connection to the Leases."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.is_down = False
        self.retry_after = 0.0
        self.tries: list[float] = []

    async def get(self, *_: Any) -> dict[str, Any] | None:
        await self.reach()
        return copy.deepcopy(self.leases.stored)

    async def create(self, kind: Any, manifest: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        await self.reach()
        if self.leases.stored is not None:
            raise ConflictError("exists")
        return self.leases.store(manifest)

    async def replace(self, kind: Any, manifest: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        await self.reach()
        if manifest["metadata"]["resourceVersion"] != self.leases.stored["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        return self.leases.store(manifest)

    async def reach(self) -> None:
        self.tries.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.leases.slow)
        if self.is_down:
            raise ClusterUnavailableError("down", retry_after=self.retry_after)


class Operator:
    """A competitor, and the story of its leadership."""

    def __init__(self, name: str, leases: Leases) -> None:
        self.client = Client(leases)
        self.story: list[tuple[float, bool]] = []
        self.lease = LeaderElection(
            self.client, "ns", "operator", name, self.tell, lambda: NOW + timedelta(seconds=now())
        )
        self.task: asyncio.Task[None] | None = None

    def tell(self, leading: bool) -> None:
        self.story.append((now(), leading))

    def kill(self) -> None:
        self.task.cancel()


@pytest.fixture
async def start():
    """Return a function that starts an operator; all are killed in the end."""
    started = []

    def start(name: str, leases: Leases) -> Operator:
        started.append(Operator(name, leases))
        started[-1].task = asyncio.create_task(started[-1].lease.run())
        return started[-1]

    yield start
    for operator in started:
        operator.kill()
        operator.lease._stop_leading("test over")


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


async def test_first_operator_leads_at_once_and_stays_leader(start) -> None:
    leases = Leases()
    one = start("one", leases)
    await asyncio.sleep(100)

    assert one.story == [(0.0, True)]
    assert leases.stored["spec"]["holderIdentity"] == "one"
    assert leases.stored["spec"]["leaseTransitions"] == 1


async def test_the_second_waits_while_the_first_renews(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(100)

    assert [one.lease.is_leading, two.lease.is_leading] == [True, False]
    assert [one.lease.other_holder, two.lease.other_holder] == ["", "one"]


async def test_the_second_takes_over_when_the_first_is_dead(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(51)
    one.kill()
    await asyncio.sleep(50)

    ((taken_at, leading),) = two.story
    assert leading
    assert 50 + LEASE_DURATION_SECONDS <= taken_at <= 51 + LEASE_DURATION_SECONDS + 2 * RETRY_PERIOD_SECONDS
    assert leases.stored["spec"]["leaseTransitions"] == 2


@pytest.mark.parametrize("after", [0.0, 0.1, 0.5, 0.9])
async def test_a_lost_leader_is_replaced_within_ten_seconds(start, after: float) -> None:
    leases = Leases()
    one = start("one", leases)
    await asyncio.sleep(after)
    two = start("two", leases)
    await asyncio.sleep(50)
    one.kill()
    await asyncio.sleep(11)

    ((taken_at, _),) = two.story
    assert taken_at - after - 50 <= 10


async def test_one_that_cannot_renew_ceases_before_another_may_begin(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(51)
    one.client.is_down = True
    await asyncio.sleep(50)

    (_, (ceased_at, _)), ((began_at, _),) = one.story, two.story
    assert ceased_at == 50 + RENEW_DEADLINE_SECONDS
    assert ceased_at < began_at


async def test_leader_whose_requests_hang_steps_down_in_time(start) -> None:
    leases = Leases()
    one = start("one", leases)
    await asyncio.sleep(51)
    leases.slow = 1000.0
    await asyncio.sleep(50)

    assert one.story == [(0.0, True), (50 + RENEW_DEADLINE_SECONDS, False)]
    assert one.lease.is_last_known_leader, "nobody else leads: what it last said still holds"


async def test_agents_move_together_from_a_leader_that_cannot_see_another(start) -> None:
    """Else the next leader would count those that report later as silent."""
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(51)
    one.client.is_down = True
    ceased_at, moves = 50 + RENEW_DEADLINE_SECONDS, []
    while now() < ceased_at + 2 * MOVE_PERIOD_SECONDS:
        await asyncio.sleep(0.5)
        moves += [now() - ceased_at] * one.lease.moves_agents

    first = [seconds for seconds in moves if seconds < MOVE_PERIOD_SECONDS]
    (began_at, _), *_ = two.story
    assert first[0] == pytest.approx(MOVE_AFTER_SECONDS, abs=0.6)
    assert first[0] > began_at - ceased_at, "another operator leads by then"
    assert first[-1] - first[0] < MOVE_WINDOW_SECONDS
    assert moves[len(first)] - first[0] == MOVE_PERIOD_SECONDS
    assert not two.lease.moves_agents


async def test_agents_stay_with_a_leader_that_renews_and_leave_no_other(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    for _ in range(100):
        await asyncio.sleep(1)
        assert not one.lease.moves_agents
        assert not two.lease.moves_agents


async def test_leader_waits_for_the_requested_delay(start) -> None:
    one = start("one", Leases())
    one.client.is_down, one.client.retry_after = True, 5 * RETRY_PERIOD_SECONDS
    await asyncio.sleep(12 * RETRY_PERIOD_SECONDS)

    assert one.client.tries == [0.0, 5 * RETRY_PERIOD_SECONDS, 10 * RETRY_PERIOD_SECONDS]


async def test_leader_that_returns_without_a_rival_continues(start) -> None:
    leases = Leases()
    one = start("one", leases)
    await asyncio.sleep(51)
    one.client.is_down = True
    await asyncio.sleep(50)
    assert not one.lease.is_leading
    one.client.is_down = False
    await asyncio.sleep(10)

    assert one.lease.is_leading
    assert one.lease.is_uninterrupted


async def test_leader_that_reacquires_from_another_restarts(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(51)
    one.client.is_down = True
    await asyncio.sleep(30)
    assert two.lease.is_leading
    two.kill()
    await asyncio.sleep(30)
    one.client.is_down = False
    await asyncio.sleep(30)

    assert one.lease.is_leading
    assert not one.lease.is_uninterrupted


async def test_one_that_comes_back_finds_the_other_and_waits(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(51)
    one.client.is_down = True
    await asyncio.sleep(50)
    one.client.is_down = False
    await asyncio.sleep(50)

    assert [one.lease.is_leading, two.lease.is_leading] == [False, True]
    assert one.lease.other_holder == "two"
    assert [one.lease.is_last_known_leader, two.lease.is_last_known_leader] == [False, True]


async def test_leader_whose_lease_was_taken_steps_down_at_once(start) -> None:
    leases = Leases()
    one = start("one", leases)
    await asyncio.sleep(50.5)
    leases.store({**leases.stored, "spec": {**leases.stored["spec"], "holderIdentity": "thief", "renewTime": "x"}})
    await asyncio.sleep(RETRY_PERIOD_SECONDS)

    assert one.story[-1] == (51.0, False)


async def test_a_released_lease_is_taken_at_once(start) -> None:
    leases = Leases()
    one, two = start("one", leases), start("two", leases)
    await asyncio.sleep(50.5)
    one.kill()
    await one.lease.release()
    await asyncio.sleep(RETRY_PERIOD_SECONDS)

    assert one.story[-1] == (50.5, False)
    assert two.lease.is_leading


async def test_release_leaves_the_lease_of_another_alone(start) -> None:
    leases = Leases()
    one = start("one", leases)
    await asyncio.sleep(1)
    leases.store({**leases.stored, "spec": {**leases.stored["spec"], "holderIdentity": "other"}})
    await one.lease.release()
    await one.lease.release()

    assert leases.stored["spec"]["holderIdentity"] == "other"


async def test_release_without_a_server_only_waits_for_the_duration(start) -> None:
    one = start("one", Leases())
    await asyncio.sleep(1)
    one.client.is_down = True

    await one.lease.release()

    assert not one.lease.is_leading


async def test_a_restart_under_the_same_name_leads_at_once(start) -> None:
    leases = Leases()
    start("one", leases)
    await asyncio.sleep(4.5)
    again = start("one", leases)
    await asyncio.sleep(1)

    assert again.lease.is_leading
    assert not again.lease.is_uninterrupted, "the new process knows nothing of what was said"
    assert leases.stored["spec"]["leaseTransitions"] == 1


@pytest.mark.looptime(False)
async def test_a_paused_leader_has_lost_the_lease_before_any_of_its_timers_runs(monkeypatch) -> None:
    """A stopped process continues where it stopped: in a reconcile, before the event loop sees how late it is."""
    monkeypatch.setattr(leader_election, "RENEW_DEADLINE_SECONDS", 0.2)
    leases, wrote = Leases(), []
    one = Operator("one", leases)
    cluster = FencedCluster(Recording(wrote), lambda: one.lease.is_leading)
    await one.lease._try_to_lead()
    await cluster.create({"number": 1})

    time.sleep(0.3)  # noqa: ASYNC251  # the event loop must not run, as in a stopped process
    assert one.story[-1][1], "no callback has told it"
    with pytest.raises(ClusterUnavailableError):
        await cluster.create({"number": 2})

    assert wrote == [{"number": 1}]
    assert not one.lease.is_leading
    one.lease._stop_leading("test over")


class Recording:
    """A cluster that records what is created."""

    def __init__(self, wrote: list[Any]) -> None:
        self.wrote = wrote

    async def create(self, manifest: Any) -> None:
        self.wrote.append(manifest)
