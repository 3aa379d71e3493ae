"""One job with thousands of simulated hosts: nodes, Jobs and pods are objects, and agents are coroutines.

The agents speak the real protocol: they authenticate with bound tokens of the API server over TLS, each from its own
address of loopback. A host reports again when it has an answer, as the real agent does.
"""

import asyncio
import base64
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from e2e.benchmarks.figures import Figure
from e2e.benchmarks.process_usage import cpu_seconds, memory_bytes
from e2e.cluster.progress import print_progress
from e2e.operator_scale.api_server import Manifest, Server, until
from e2e.operator_scale.controllers import NAMESPACE, OPERATOR_NAMESPACE, Operator
from trainingjob_api.protocol import REPORT_PATH, TOKEN_AUDIENCE, HostReport, Phase, Progress
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, REPLICATED_JOB, SLICE_OFFSET_LABEL, UID_LABEL
from trainingjob_operator.shell.kinds import JOB, JOB_SET, NODE, POD, SECRET
from trainingjob_operator.shell.rendezvous import LONG_POLL_SECONDS
from trainingjob_operator.shell.settings import RENDEZVOUS_PORT, Settings

NUM_REQUESTS = 32
"""Concurrent requests of the benchmark to the API server."""
SETTINGS = Settings(trainer_image="", namespace=OPERATOR_NAMESPACE)
STEP_SECONDS = 5.0
RETRY_SECONDS = 1.0
FORM_SECONDS = 300.0
SETTLE_SECONDS, STEADY_SECONDS = 5.0, 20.0
GOAL_FORM_SECONDS = 10.0
MIB = 2**20


@dataclass(frozen=True)
class Host:
    """A simulated pod, and the token of its service account."""

    number: int
    slice: int
    index: int
    name: str
    uid: str
    token: str

    @property
    def address(self) -> str:
        """Return its address of loopback, which differs for each host."""
        return f"127.{1 + self.number // 62500}.{self.number // 250 % 250}.{1 + self.number % 250}"


@dataclass
class Record:
    """What the hosts have seen."""

    train_at: dict[int, float] = field(default_factory=dict)
    """The time at which each host first got the directive to train."""
    answers: list[tuple[float, float]] = field(default_factory=list)
    """The time and duration in seconds of each exchange."""
    errors: dict[str, int] = field(default_factory=dict)


def make_large_job(name: str, slices: int, topology: str) -> Manifest:
    """Return a job on TPU slices: the model of the demo, with a batch for thousands of hosts."""
    manifest = Operator().make_job(name)
    manifest["spec"]["slices"] = {"accelerator": "tpu-v5p", "topology": topology, "min": slices, "max": slices}
    manifest["spec"]["training"]["globalBatchSize"] = 65536
    manifest["spec"]["parallelism"] = {"ici": {"data": -1}}
    manifest["spec"]["runtime"].pop("resources")
    return manifest


async def make_pods(server: Server, job: Manifest) -> list[Host]:
    """Act as the controllers of JobSets and Jobs, the scheduler and the kubelets: create what they would."""
    uid = job["metadata"]["uid"]
    sets = (await server.request("GET", f"{JOB_SET.path(NAMESPACE)}?labelSelector={UID_LABEL}%3D{uid}"))["items"]
    await server.apply(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", _named("ServiceAccount", "default"))
    limit, tasks = asyncio.Semaphore(NUM_REQUESTS), list[asyncio.Task[Host]]()
    async with asyncio.TaskGroup() as group:
        for jobset in sets:
            (replicated,) = jobset["spec"]["replicatedJobs"]
            for index in range(replicated["replicas"]):
                created = await _create_job(server, jobset, replicated, index)
                for host in range(replicated["template"]["spec"]["completions"]):
                    number = len(tasks)
                    tasks.append(group.create_task(_create_host(server, limit, created, number, host)))
    return [task.result() for task in tasks]


async def _create_job(server: Server, jobset: Manifest, replicated: Manifest, index: int) -> Manifest:
    template = replicated["template"]
    pod = template["spec"]["template"]
    added = {JOB_INDEX_LABEL: str(index)}
    labels = jobset["metadata"]["labels"] | template.get("metadata", {}).get("labels", {}) | added
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{jobset['metadata']['name']}-{REPLICATED_JOB}-{index}",
            "labels": labels,
            "ownerReferences": [_owner(jobset)],
        },
        "spec": template["spec"] | {"template": pod | {"metadata": _with_labels(pod.get("metadata", {}), labels)}},
    }
    return await server.request("POST", JOB.path(NAMESPACE), manifest)


async def _create_host(server: Server, limit: asyncio.Semaphore, job: Manifest, number: int, index: int) -> Host:
    name, node = f"{job['metadata']['name']}-{index}", f"node-{number}"
    template = job["spec"]["template"]
    labels = template["metadata"]["labels"] | {HOST_LABEL: str(index)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [_owner(job)]},
        "spec": template["spec"] | {"nodeName": node, "serviceAccountName": "default"},
    }
    ready = {"type": "Ready", "status": "True"}
    state = {"ready": True, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}}
    containers = [{"name": one["name"]} | state for one in template["spec"]["containers"]]
    slice_number = int(labels[SLICE_OFFSET_LABEL]) + int(labels[JOB_INDEX_LABEL])
    host = Host(number, slice_number, index, name, "", "")
    async with limit:
        await server.request("POST", NODE.path(), _named("Node", node) | {"status": {"conditions": [ready]}})
        created = await server.request("POST", POD.path(NAMESPACE), pod)
        status = {"phase": "Running", "podIP": host.address, "conditions": [ready], "containerStatuses": containers}
        await server.request(
            "PATCH", POD.path(NAMESPACE, name, "status"), {"status": status},
            **{"Content-Type": "application/merge-patch+json"},
        )  # fmt: skip
        uid = created["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        asked = {"audiences": [TOKEN_AUDIENCE], "expirationSeconds": 7200, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": asked}
        token = (await server.request("POST", path, body))["status"]["token"]
    return Host(number, slice_number, index, name, uid, token)


@contextlib.asynccontextmanager
async def reporting(server: Server, job: Manifest, hosts: list[Host]) -> AsyncIterator[Record]:
    """Run an agent for each host while the context lasts."""
    secret = await server.request("GET", SECRET.path(OPERATOR_NAMESPACE, SETTINGS.ca_secret))
    trust = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
    record = Record()
    tasks = [asyncio.create_task(_report(host, job["metadata"]["uid"], trust, record)) for host in hosts]
    try:
        yield record
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _report(host: Host, job_uid: str, trust: ssl.SSLContext, record: Record) -> None:
    """Report as an agent whose child waits, joins each world, and finishes a step every few seconds."""
    loop = asyncio.get_running_loop()
    report = HostReport(
        job_uid=job_uid,
        pod=host.name,
        pod_uid=host.uid,
        slice=host.slice,
        host=host.index,
        address=host.address,
        instance=secrets.token_hex(8),
        port=5000,
        standby=True,
    )
    connector = aiohttp.TCPConnector(ssl=trust, local_addr=(host.address, 0), limit=1)
    url, headers = f"https://127.0.0.1:{RENDEZVOUS_PORT}{REPORT_PATH}", {"Authorization": f"Bearer {host.token}"}
    headers |= {"Content-Type": "application/json"}
    joined_at, known = 0.0, b""
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30.0)) as client:
        while True:
            begun = loop.time()
            try:
                body = report.model_dump_json(by_alias=True)
                async with client.post(url, data=body, headers=headers, server_hostname=SETTINGS.host) as response:
                    text = await response.read()
                if response.status == 304:
                    text = known
                elif response.status == 200:
                    known, headers["If-None-Match"] = text, response.headers["ETag"]
                else:
                    raise aiohttp.ClientError(f"{response.status} {text[:200].decode()}")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                words = f"{type(error).__name__}: {error}"[:120]
                record.errors[words] = record.errors.get(words, 0) + 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            answered = loop.time()
            record.answers.append((answered, answered - begun))
            generation = _generation(text)
            if generation and generation != report.generation:
                record.train_at[host.number] = answered
                joined_at = answered
                report = report.model_copy(update={"generation": generation, "phase": Phase.TRAINING, "restored": 0})
            elif report.generation:
                step = int((answered - joined_at) / STEP_SECONDS)
                report = report.model_copy(update={"progress": Progress(step=step, loss=1.0) if step else None})
            await asyncio.sleep(0.05)


def _generation(text: bytes) -> int:
    """Return the generation in which an answer lets the host train; 0: none. It does not parse the members."""
    if b'"directive":"train"' not in text[:200]:
        return 0
    _, _, rest = text.partition(b'"generation":')
    return int(rest.partition(b",")[0]) if rest else 0


def _owner(manifest: Manifest) -> Manifest:
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "name": manifest["metadata"]["name"],
        "uid": manifest["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _named(kind: str, name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def _with_labels(metadata: Manifest, labels: dict[str, Any]) -> Manifest:
    return metadata | {"labels": metadata.get("labels", {}) | labels}


async def measure_hosts(
    server: Server, slices: int, topology: str, goal_mib_per_host: float, goal_seconds: float
) -> list[Figure]:
    """Return the figures of one job with thousands of hosts that start at once, and then train."""
    operator, loop = Operator(), asyncio.get_running_loop()
    async with operator.run(server) as process:
        before = memory_bytes(process.pid) / MIB
        job = await server.request("POST", operator.jobs_path, make_large_job("large", slices, topology))
        uid = job["metadata"]["uid"]

        async def has_jobset() -> bool:
            path = f"{JOB_SET.path(NAMESPACE)}?labelSelector={UID_LABEL}%3D{uid}"
            return bool((await server.request("GET", path))["items"])

        await until(has_jobset, "the JobSet of the large job", FORM_SECONDS)
        print_progress("creating the nodes and pods of the large job")
        hosts = await make_pods(server, job)
        print_progress(f"starting {len(hosts)} agents")
        begun = loop.time()
        async with reporting(server, job, hosts) as record:
            await until(lambda: len(record.train_at) == len(hosts), "all hosts to train", FORM_SECONDS)
            formed = sorted(record.train_at.values())
            print_progress(f"measuring {STEADY_SECONDS:.0f} s of training")
            await asyncio.sleep(SETTLE_SECONDS)
            cpu, since = cpu_seconds(process.pid), loop.time()
            await asyncio.sleep(STEADY_SECONDS)
            busy = (cpu_seconds(process.pid) - cpu) / (loop.time() - since)
            held = sorted(seconds for at, seconds in record.answers if at >= since)
            after = memory_bytes(process.pid) / MIB
            errors = sum(record.errors.values())
    first = formed[0]
    hold = held[len(held) // 2]  # nearly all answers are held until their time ends
    late = [max(seconds - hold, 0.0) for seconds in held]
    return [
        Figure("live hosts", len(hosts), "hosts", 4096),
        Figure("all hosts start: to the first directive", first - begun, "s", GOAL_FORM_SECONDS),
        Figure("first to last directive of a world", formed[-1] - first, "s", GOAL_FORM_SECONDS),
        Figure("first to median directive of a world", formed[len(formed) // 2] - first, "s", GOAL_FORM_SECONDS),
        Figure("answers of the rendezvous: hold, median", hold, "s", LONG_POLL_SECONDS),
        Figure("answers of the rendezvous: delay after the hold, p99", late[int(len(late) * 0.99)], "s", goal_seconds),
        Figure("reports per second", len(held) / STEADY_SECONDS, "reports/s", len(hosts) / LONG_POLL_SECONDS),
        Figure("the operator's CPU while all hosts train", busy, "cores", 1.0),
        Figure("memory per live host", (after - before) / len(hosts), "MiB", goal_mib_per_host),
        Figure("refused reports while all hosts start", errors, "reports", len(hosts)),
    ]
