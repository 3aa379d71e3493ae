"""The requests of many jobs, sent by the benchmark without any operator: no operator can start the jobs in less time.

Each job has the objects that this operator has made of one: its ConfigMaps, its JobSet and its first status.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from e2e.cluster.progress import print_progress
from e2e.operator_scale.api_server import Manifest, Server
from e2e.operator_scale.controllers import NAMESPACE, Operator
from e2e.operator_scale.jobs import CREATE_CONCURRENCY, list_children, settle, wait_for_jobset
from trainingjob_operator.shell.kinds import CONFIG_MAP, JOB_SET, TRAINING_JOB, Kind

START_SECONDS = 60.0
SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
"""Metadata that the API server sets."""


@dataclass(frozen=True)
class JobObjects:
    """What the operator has made of one job."""

    job: Manifest
    children: tuple[tuple[Kind, Manifest], ...]

    def copy_children(self, name: str, uid: str) -> tuple[tuple[Kind, Manifest], ...]:
        """Return the children of another job."""
        former = self.job["metadata"]
        text = json.dumps([child for _, child in self.children])
        copies = json.loads(text.replace(former["uid"], uid).replace(former["name"], name))
        return tuple((kind, copied) for (kind, _), copied in zip(self.children, copies, strict=True))


async def make_example(server: Server) -> JobObjects:
    """Return the objects of one job, for which the operator runs once."""
    operator = Operator()
    async with operator.run(server):
        job = await server.request("POST", operator.jobs_path, operator.make_job("example"))
        uid = job["metadata"]["uid"]
        await wait_for_jobset(server, uid, START_SECONDS)
        await settle(server)
        job = await server.request("GET", f"{operator.jobs_path}/example")
        children = [
            (kind, _strip(item | {"apiVersion": kind.api_version, "kind": kind.name}))
            for kind in (CONFIG_MAP, JOB_SET)
            for item in await list_children(server, kind, uid)
        ]
    return JobObjects(job, tuple(children))


def _strip(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in SERVER_FIELDS}
    return {key: value for key, value in manifest.items() if key != "status"} | {"metadata": metadata}


async def measure_requests(server: Server, example: JobObjects, number: int, *, only_creations: bool) -> float:
    """Return the seconds for the requests of some jobs. `only_creations`: those of the TrainingJobs and JobSets."""
    operator, loop, limit = Operator(), asyncio.get_running_loop(), asyncio.Semaphore(CREATE_CONCURRENCY)
    kinds = (JOB_SET,) if only_creations else (CONFIG_MAP, JOB_SET)

    async def start_job(name: str) -> None:
        async with limit:
            job = await server.request("POST", operator.jobs_path, operator.make_job(name))
            for kind, child in example.copy_children(name, job["metadata"]["uid"]):
                if kind in kinds:
                    await server.request("POST", kind.path(NAMESPACE), child)
            if not only_creations:
                status: dict[str, Any] = {"status": example.job["status"]}
                await server.request("PUT", TRAINING_JOB.path(NAMESPACE, name, "status"), job | status)

    start = loop.time()
    print_progress(f"sending the requests of {number} jobs without an operator")
    async with asyncio.TaskGroup() as group:
        for index in range(number):
            group.create_task(start_job(f"{'created' if only_creations else 'started'}-{index}"))
    return loop.time() - start
