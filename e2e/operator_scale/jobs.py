"""Creation of many jobs, and the time from each job to its JobSet."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.operator_scale.api_server import Manifest, Server, until
from e2e.operator_scale.controllers import NAMESPACE, Controller
from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.shell.kinds import JOB_SET, Kind

CREATE_CONCURRENCY = 32
WAIT_SECONDS = 600.0
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type of a watch whose events contain only the metadata: a JobSet has 9 KB."""


@dataclass
class Watch:
    """The time at which each job's first JobSet appeared, by the name of its owner."""

    seen: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Campaign:
    """The latencies of jobs in seconds, the duration of all, and write requests of the controller by resource."""

    latencies: list[float]
    seconds: float
    writes: dict[str, float]

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    @property
    def writes_per_job(self) -> float:
        """Return the controller's write requests of a job."""
        return sum(self.writes.values()) / len(self.latencies)


async def create_jobs(
    server: Server, controller: Controller, prefix: str, number: int, jobs_per_second: float | None = None
) -> Campaign:
    """Create jobs, and wait until each has a JobSet.

    Without a rate, 32 requests run at once. The number of writes leaves out the benchmark's requests.
    """
    names = [f"{prefix}-{index}" for index in range(number)]
    loop, created = asyncio.get_running_loop(), dict[str, float]()
    before = await server.count_writes()
    limit = asyncio.Semaphore(CREATE_CONCURRENCY)

    async def create(index: int, name: str) -> None:
        if jobs_per_second:
            await asyncio.sleep(start + index / jobs_per_second - loop.time())
        async with limit:
            created[name] = loop.time()
            await server.request("POST", controller.jobs_path, controller.make_job(name))

    async with watching(server) as watch:
        start = loop.time()
        async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as group:
            for index, name in enumerate(names):
                group.create_task(create(index, name))
            while not watch.seen.keys() >= set(names):
                watch.changed.clear()
                await watch.changed.wait()
        seconds = max(watch.seen[name] for name in names) - start
        await settle(server)
    writes = {
        resource: count - before.get(resource, 0.0) - number * (resource == controller.jobs_path.rpartition("/")[2])
        for resource, count in (await server.count_writes()).items()
    }
    latencies = [watch.seen[name] - created[name] for name in names]
    return Campaign(latencies, seconds, {resource: count for resource, count in writes.items() if count})


async def list_children(server: Server, kind: Kind, uid: str) -> list[Manifest]:
    """Return the objects of a kind that have the UID label of a job of this operator."""
    items: list[Manifest] = (await server.request("GET", f"{kind.path(NAMESPACE)}?labelSelector={UID_LABEL}%3D{uid}"))[
        "items"
    ]
    return items


async def wait_for_jobset(server: Server, uid: str, seconds: float) -> None:
    """Return when a job of this operator has a JobSet. Raises `ClusterError` after the given time."""

    async def has_jobset() -> bool:
        return bool(await list_children(server, JOB_SET, uid))

    await until(has_jobset, "the job's JobSet", seconds)


async def settle(server: Server, seconds: float = 3.0) -> None:
    """Return when no write request arrived for some seconds."""
    loop, last, since = asyncio.get_running_loop(), -1.0, 0.0
    while True:
        total = sum((await server.count_writes()).values())
        if total != last:
            last, since = total, loop.time()
        elif loop.time() - since >= seconds:
            return
        await asyncio.sleep(seconds / 6)


@asynccontextmanager
async def watching(server: Server) -> Any:
    """Watch the JobSets while the context lasts."""
    watch = Watch()
    version = (await server.request("GET", f"{JOB_SET.path(NAMESPACE)}?limit=1"))["metadata"]["resourceVersion"]
    task = asyncio.create_task(_watch(server, watch, version))
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(server: Server, watch: Watch, version: str) -> None:
    url = f"{server.url}{JOB_SET.path(NAMESPACE)}?watch=1&resourceVersion={version}"
    loop, rest = asyncio.get_running_loop(), b""
    async with server.client.get(url, headers={"Accept": METADATA_ONLY}) as response:
        async for chunk in response.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                for owner in _owners(json.loads(line)["object"]):
                    watch.seen.setdefault(owner, loop.time())
            watch.changed.set()


def _owners(jobset: Manifest) -> Iterator[str]:
    for owner in jobset["metadata"].get("ownerReferences") or ():
        yield get_text(owner, "name")
