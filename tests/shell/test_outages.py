"""The API server accepts no writes for ten minutes: a job ends as without them, at the agreed rate of requests.

The scheduler, the reconciler and the writer of events are the real ones, in the simulated time of a whole job.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest

from tests.support.builders import NAME, NAMESPACE
from tests.support.cases import sample
from tests.support.fake_cluster import FakeCluster
from tests.support.simulation import SETTINGS, TICK, Simulation
from trainingjob_operator.shell.api import REQUEST_TIMEOUT_SECONDS
from trainingjob_operator.shell.events import EventRecorder
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Children, ClusterUnavailableError, Manifest
from trainingjob_operator.shell.reconcile import Reconciler
from trainingjob_operator.shell.scheduler import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, Scheduler

pytestmark = pytest.mark.looptime

OUTAGE_SECONDS = 600.0
ASKED_SECONDS = 45.0
MAX_LOOKS = math.log2(MAX_BACKOFF_SECONDS / FIRST_BACKOFF_SECONDS) + OUTAGE_SECONDS / MAX_BACKOFF_SECONDS + 2
"""How often a job is looked at in that time: the pauses double up to the longest. A look ends at its first write."""


@dataclass(frozen=True)
class Outage:
    """How a write fails."""

    seconds: float = 0.0
    """Until the client knows."""
    retry_after: float = 0.0
    is_done: bool = False
    """Whether it is done all the same."""


OUTAGES = {
    "429 with Retry-After": Outage(retry_after=ASKED_SECONDS),
    "5xx": Outage(),
    "a server that hangs": Outage(seconds=REQUEST_TIMEOUT_SECONDS),
    "a server that hangs when it has written": Outage(seconds=REQUEST_TIMEOUT_SECONDS, is_done=True),
}


class StruckServer:
    """The cluster of a simulation, through an API server with an outage. It records the writes."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.outage: Outage | None = None
        self.writes: list[str] = []
        self.failed: list[float] = []
        self._events = EventRecorder(self, cluster.time.now)  # type: ignore[arg-type]

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        return await self.cluster.read_job(namespace, name)

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        return await self.cluster.read_children(namespace, uid, recorded_nodes)

    async def create(self, manifest: Manifest) -> None:
        await self._write("create", manifest, self.cluster.create(manifest))

    async def apply(self, kind_or_manifest: Any, event: Manifest | None = None) -> None:
        """Apply a child, as the reconciler does, or an event, as the writer of events does."""
        if event is None:
            await self._write("apply", kind_or_manifest, self.cluster.apply(kind_or_manifest))
        else:
            await self._write("event", event, asyncio.sleep(0))

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        await self._write("delete", manifest, self.cluster.delete(manifest, grace_seconds=grace_seconds))

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        return await self._write("status", job, self.cluster.write_status(job, status))

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        await self._events.write(job, warning=warning, reason=reason, message=message)

    @property
    def created(self) -> list[str]:
        """Return the created objects, with duplicates."""
        return sorted(what for what in self.writes if what.startswith("create"))

    async def _write(self, verb: str, manifest: Manifest, write: Any) -> Any:
        now, outage = self.cluster.time.seconds, self.outage
        what = f"{verb} {manifest['kind']} {manifest['metadata']['name']}"
        if outage is None:
            self.writes.append(what)
            return await write
        self.failed.append(now)
        if outage.is_done:
            self.writes.append(what)
            await write
        else:
            write.close()
        await asyncio.sleep(outage.seconds)
        raise ClusterUnavailableError("out", retry_after=outage.retry_after)


class Life:
    """A job's life, reconciled by a scheduler."""

    def __init__(self) -> None:
        self.sim = Simulation(total=45)
        self.server = StruckServer(self.sim.cluster)
        self.scheduler = Scheduler(self._reconcile)
        self.sim.hub = Hub(self.sim.time.monotonic, self.scheduler.wake)
        self.reconciler = Reconciler(self.server, self.sim.hub, lambda: SETTINGS, self.sim.time.now)
        self.scheduler.resume()
        self.sim.due = math.inf  # the scheduler looks

    async def _reconcile(self, namespace: str, name: str) -> float | None:
        return await self.reconciler.reconcile(namespace, name)

    async def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; the watch reports all events of the cluster."""
        for _ in range(int(seconds / TICK)):
            if until():
                return
            version = self.sim.cluster._version
            await asyncio.sleep(TICK)
            if ("TrainingJob", NAME) in self.sim.cluster.objects:
                await self.sim.tick()
            else:
                self.sim.time.seconds += TICK
                self.sim.cluster.tick()
            if self.sim.cluster._version != version:
                self.scheduler.wake(NAMESPACE, NAME)

    def is_over(self) -> bool:
        return self.sim.status.completion_time is not None


def lose_a_slice(life: Life) -> None:
    for host in (0, 1):
        life.sim.kill_node(f"node-1-{host}")


def delete(life: Life) -> None:
    del life.sim.cluster.objects["TrainingJob", NAME]


def suspend(life: Life) -> None:
    life.sim.edit(suspend=True)


HAPPENINGS: dict[str, tuple[int, Callable[[Life], None]]] = {
    "is made": (0, lambda _: None),
    "trains": (5, lambda _: None),
    "loses a slice": (5, lose_a_slice),
    "is suspended": (5, suspend),
    "is deleted": (5, delete),
}
"""At which step a job is when the outage begins, and what happens to it then."""


async def live(step: int, strike: Callable[[Life], None], outage: Outage | None) -> Life:
    life = Life()
    life.scheduler.wake(NAMESPACE, NAME)
    if step:
        await life.run(120, until=lambda: life.sim.newest_step >= step)
    life.server.outage = outage
    strike(life)
    life.sim.step_seconds = 20.0  # no job is done before the outage is over
    await life.run(OUTAGE_SECONDS)
    life.server.outage = None
    await life.run(MAX_BACKOFF_SECONDS + ASKED_SECONDS)
    if ("TrainingJob", NAME) in life.sim.cluster.objects:
        life.sim.step_seconds = 1.0
        life.sim.edit(suspend=False)
        await life.run(300, until=life.is_over)
        await life.run(10)
    await life.scheduler.stop()
    return life


def describe(life: Life) -> dict[str, Any]:
    """Return how a life has ended, without how long it took."""
    cluster = life.sim.cluster
    if ("TrainingJob", NAME) not in cluster.objects:
        return {"left": sorted(cluster.objects)}
    status = life.sim.status
    return {
        "phase": status.phase,
        "attempts": [(one.slices, one.lost_steps) for one in status.attempts],
        "restarts": status.restarts,
        "progress": status.progress and status.progress.step,
        "conditions": {one.type: (one.status, one.reason) for one in status.conditions},
        "children": sorted(name for kind, name in cluster.objects if kind in ("JobSet", "Job", "ConfigMap")),
    }


@cache
def calm_lives() -> dict[str, Life]:
    """Return the lives that no outage struck so far."""
    return {}


@pytest.mark.thorough
@pytest.mark.parametrize(("happening", "name"), sample(list(product(HAPPENINGS, OUTAGES)), every=3))
async def test_ten_minutes_without_writes_change_nothing_in_the_end(happening: str, name: str) -> None:
    outage = OUTAGES[name]
    calm = calm_lives().get(happening) or await live(*HAPPENINGS[happening], None)
    calm_lives()[happening] = calm

    struck = await live(*HAPPENINGS[happening], outage)

    reported, want = describe(struck), describe(calm)
    if happening == "is made" and outage.is_done:  # it begins with the minimum, which is there before the others
        assert reported.pop("attempts") == [(1, None), (2, 0)]
        assert want.pop("attempts") == [(2, None)]
    assert reported == want
    assert struck.server.created == calm.server.created, "nothing is made twice"
    failed = struck.server.failed
    assert len(failed) <= (len(calm.server.writes) if outage.is_done else MAX_LOOKS)
    assert all(later - earlier >= outage.retry_after for earlier, later in pairwise(failed))
