"""One job with thousands of simulated hosts: nodes, Jobs and pods are objects, and agents are coroutines.

The agents authenticate with bound tokens of the API server over TLS. A host reports again when it has an answer, as the
real agent does.
"""

import asyncio
import base64
import ssl
import time
from typing import Any

from e2e.benchmarks.figures import Figure
from e2e.benchmarks.process_usage import MIB, cpu_seconds, memory_bytes
from e2e.cluster.progress import print_progress
from e2e.operator_scale.agent_load import Host, reporting
from e2e.operator_scale.api_server import Manifest, Server, until
from e2e.operator_scale.controllers import NAMESPACE, OPERATOR_NAMESPACE, Operator, idle_memory
from e2e.operator_scale.jobs import list_children, wait_for_jobset
from e2e.operator_scale.restart import measure_restart, summarize_answers
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, REPLICATED_JOB, SLICE_OFFSET_LABEL
from trainingjob_operator.shell.kinds import JOB, JOB_SET, NODE, POD, SECRET
from trainingjob_operator.shell.rendezvous import LONG_POLL_SECONDS
from trainingjob_operator.shell.settings import Settings

NUM_REQUESTS = 32
"""Concurrent requests of the benchmark to the API server."""
SETTINGS = Settings(trainer_image="", namespace=OPERATOR_NAMESPACE)
FORM_SECONDS = 300.0
SETTLE_SECONDS, STEADY_SECONDS = 5.0, 20.0
GOAL_FORM_SECONDS, GOAL_REPORT_MS, GOAL_START_MS = 10.0, 0.3, 2.0


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
    sets = await list_children(server, JOB_SET, uid)
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
    containers = [{"name": container["name"]} | state for container in template["spec"]["containers"]]
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
        token_spec = {"audiences": [TOKEN_AUDIENCE], "expirationSeconds": 7200, "boundObjectRef": bound}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": token_spec}
        token = (await server.request("POST", path, body))["status"]["token"]
    return Host(number, slice_number, index, name, uid, token)


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
    """Return the figures of one job with thousands of hosts that start at once, train, and lose their operator."""
    operator, loop = Operator(), asyncio.get_running_loop()
    async with operator.run(server) as process:
        job = await server.request("POST", operator.jobs_path, make_large_job("large", slices, topology))
        uid = job["metadata"]["uid"]

        await wait_for_jobset(server, uid, FORM_SECONDS)
        before = await idle_memory(process)
        print_progress("creating the nodes and pods of the large job")
        hosts = await make_pods(server, job)
        print_progress(f"starting {len(hosts)} agents")
        secret = await server.request("GET", SECRET.path(OPERATOR_NAMESPACE, SETTINGS.ca_secret))
        trust = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
        start, cpu = loop.time(), cpu_seconds(process.pid)
        async with reporting(SETTINGS.host, trust, uid, hosts) as record:
            await until(lambda: len(record.train_at) == len(hosts), "all hosts to train", FORM_SECONDS)
            formed = sorted(record.train_at.values())
            starting, refused = cpu_seconds(process.pid) - cpu, sum(record.errors.values())
            print_progress(f"measuring {STEADY_SECONDS:.0f} s of training")
            await asyncio.sleep(SETTLE_SECONDS)
            cpu, of_agents, since = cpu_seconds(process.pid), time.process_time(), loop.time()
            await asyncio.sleep(STEADY_SECONDS)
            reporting_cpu, of_agents = cpu_seconds(process.pid) - cpu, time.process_time() - of_agents
            seconds = loop.time() - since
            answers = summarize_answers(record.answers, since)
            after = memory_bytes(process.pid) / MIB
            restart = await measure_restart(server, process, record, f"{operator.jobs_path}/large", goal_seconds)
    first = formed[0]
    return [
        Figure("live hosts", len(hosts), "hosts", 4096),
        Figure("all hosts start: to the first directive", first - start, "s", GOAL_FORM_SECONDS),
        Figure("first to last directive of a world", formed[-1] - first, "s", GOAL_FORM_SECONDS),
        Figure("first to median directive of a world", formed[len(formed) // 2] - first, "s", GOAL_FORM_SECONDS),
        Figure("answers of the rendezvous: hold, median", answers.hold, "s", LONG_POLL_SECONDS),
        Figure("answers of the rendezvous: delay after the hold, p99", answers.delay, "s", goal_seconds),
        Figure("reports per second", answers.number / seconds, "reports/s", len(hosts) / LONG_POLL_SECONDS),
        Figure("the operator's CPU while all hosts train", reporting_cpu / seconds, "cores", 1.0),
        Figure("the operator's CPU per report", reporting_cpu / answers.number * 1000, "ms", GOAL_REPORT_MS),
        Figure("the benchmark's CPU per report", of_agents / answers.number * 1000, "ms", GOAL_REPORT_MS),
        Figure("the operator's CPU per host until all train", starting / len(hosts) * 1000, "ms", GOAL_START_MS),
        Figure("memory per live host", (after - before) / len(hosts), "MiB", goal_mib_per_host),
        Figure("refused reports while all hosts start", refused, "reports", len(hosts)),
        *restart,
    ]
