"""A small cluster in memory: an API server with versions, and the controllers that matter to the operator.

It is slow where the real one is slow and fast where it is fast, in simulated time; faults can be put before and after
each write.
"""

import asyncio
import json
import marshal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.support.builders import NOW
from trainingjob_operator.core.manifests import get_value
from trainingjob_operator.core.names import CA_CONFIG_MAP, HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL, UID_LABEL
from trainingjob_operator.core.times import format_time, parse_time
from trainingjob_operator.shell.interfaces import Children, ConflictError, Manifest, MissingKindError

type Key = tuple[str, str]
type Fault = Callable[[str], None]

POD_START_SECONDS = 2.0
NOT_READY_SECONDS = 20.0
EVICTION_SECONDS = 5.0
GRACE_SECONDS = 10.0


class OperatorKilledError(BaseException):
    """The operator's process ends here."""


@dataclass
class Time:
    """Simulated time: a monotonic clock and a time of day, which a test may set apart from each other."""

    seconds: float = 100.0
    skew: float = 0.0

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self.seconds

    def now(self) -> datetime:
        """Return the time of day."""
        return NOW + timedelta(seconds=self.seconds + self.skew)


@dataclass
class Node:
    """A machine for one pod."""

    name: str
    slice: int
    up: bool = True
    reachable: bool = True
    """Whether the cluster hears of it. What runs on it goes on where it does not."""
    down_since: float = 0.0
    ready: bool = True
    taint: str = ""


class FakeCluster:
    """What `ports.Cluster` promises, over objects in memory."""

    def __init__(self, time: Time, num_slices: int = 2, num_hosts: int = 2) -> None:
        self.time = time
        self.objects: dict[Key, Manifest] = {}
        self.nodes = {f"node-{s}-{h}": Node(f"node-{s}-{h}", s) for s in range(num_slices) for h in range(num_hosts)}
        self.before: Fault = lambda write: None
        self.after: Fault = lambda write: None
        self.has_jobset = True
        self.stale_reads = 0
        """How many of the next reads of children show what the last one before them showed."""
        self.writes: list[str] = []
        self.events: list[tuple[bool, str, str]] = []
        self.statuses: list[Manifest] = []
        self._version = 0
        self._last_children: Children | None = None

    # What the operator calls

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        job = self.objects.get(("TrainingJob", name))
        return job and copied(job)

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        await asyncio.sleep(0)  # another operator may act meanwhile
        if not self.has_jobset:
            raise MissingKindError("jobsets")
        if self.stale_reads > 0 and self._last_children is not None:
            self.stale_reads -= 1
            return self._last_children
        mine = [item for item in self.objects.values() if get_value(item, "metadata", "labels", UID_LABEL) == uid]
        of = {
            kind: tuple(copied(i) for i in mine if i["kind"] == kind) for kind in ("JobSet", "Job", "Pod", "ConfigMap")
        }
        nodes = {node.name: self._node_manifest(node) for node in self.nodes.values()}
        certificates = self.objects.get(("ConfigMap", CA_CONFIG_MAP))
        self._last_children = Children(
            of["JobSet"], of["Job"], of["Pod"], of["ConfigMap"], nodes, certificates=certificates
        )
        return self._last_children

    async def create(self, manifest: Manifest) -> None:
        with self._write("create", manifest):
            if known := self.objects.get((manifest["kind"], manifest["metadata"]["name"])):
                raise ConflictError("exists", existing=copied(known))
            self.put(manifest)

    async def apply(self, manifest: Manifest) -> None:
        with self._write("apply", manifest):
            self.put(manifest)

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        with self._write("delete", manifest):
            key = (manifest["kind"], manifest["metadata"]["name"])
            known = self.objects.get(key)
            if known is None or known["metadata"]["uid"] != manifest["metadata"]["uid"]:
                return
            if known["kind"] == "Pod" and grace_seconds != 0:
                deadline = self.time.now() + timedelta(seconds=GRACE_SECONDS)
                known["metadata"].setdefault("deletionTimestamp", format_time(deadline))
            else:
                del self.objects[key]

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        await asyncio.sleep(0)
        with self._write("status", job):
            known = self.objects.get(("TrainingJob", job["metadata"]["name"]))
            if known is None or known["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]:
                raise ConflictError("changed")
            known["status"] = sent(status)
            self.touch(known)
            self.statuses.append(copied(known["status"]))
        return copied(known)

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        self.events.append((warning, reason, message))

    # What tests call

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object as the API server would."""
        stored = sent(manifest)
        known = self.objects.get((stored["kind"], stored["metadata"]["name"]))
        self._version += 1
        stored["metadata"].setdefault("uid", known["metadata"]["uid"] if known else f"uid-{self._version}")
        stored["metadata"].setdefault("creationTimestamp", format_time(self.time.now()))
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[stored["kind"], stored["metadata"]["name"]] = stored
        return stored

    def touch(self, manifest: Manifest) -> None:
        """Publish a changed object."""
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)

    def all(self, kind: str) -> list[Manifest]:
        """Return all objects of a kind."""
        return [item for key, item in self.objects.items() if key[0] == kind]

    def pod_of(self, node: str) -> Manifest | None:  # None: nothing is bound to it
        """Return the pod on a node."""
        return next((pod for pod in self.all("Pod") if pod["spec"].get("nodeName") == node), None)

    def tick(self) -> None:
        """Let controllers, scheduler, kubelets and the garbage collector act for a moment."""
        self._collect_garbage()
        for jobset in self.all("JobSet"):
            self._run_jobset(jobset)
        for job in self.all("Job"):
            self._run_job(job)
        for node in self.nodes.values():
            self._run_node(node)
        self._mark_unschedulable()

    # The controllers

    def _collect_garbage(self) -> None:
        uids = {item["metadata"]["uid"] for item in self.objects.values()}
        for key, item in tuple(self.objects.items()):
            owners = item["metadata"].get("ownerReferences", [])
            if not owners or any(owner["uid"] in uids for owner in owners):
                continue
            if item["kind"] == "Pod":
                deadline = self.time.now() + timedelta(seconds=GRACE_SECONDS)
                item["metadata"].setdefault("deletionTimestamp", format_time(deadline))
            else:
                del self.objects[key]

    def _run_jobset(self, jobset: Manifest) -> None:
        name, uid = jobset["metadata"]["name"], jobset["metadata"]["uid"]
        for index in range(0 if jobset["spec"].get("suspend") else jobset["spec"]["replicatedJobs"][0]["replicas"]):
            if ("Job", f"{name}-slice-{index}") not in self.objects:
                labels = {**_labels(jobset), JOB_INDEX_LABEL: str(index)}
                self.put(_child("Job", f"{name}-slice-{index}", uid, labels, {}))

    def _run_job(self, job: Manifest) -> None:
        jobset = self.objects.get(("JobSet", job["metadata"]["name"].rpartition("-slice-")[0]))
        if jobset is None or (jobset["spec"].get("suspend") and self._delete_job(job)):
            return
        for host in range(jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]):
            pods = [pod for pod in self.all("Pod") if _belongs(pod, job, host)]
            if all(pod["metadata"].get("deletionTimestamp") or pod["status"]["phase"] == "Failed" for pod in pods):
                labels = {**job["metadata"]["labels"], HOST_LABEL: str(host)}
                name = f"{job['metadata']['name']}-{host}-{self._version:05d}"
                self.put(_child("Pod", name, job["metadata"]["uid"], labels, {"phase": "Pending"}))

    def _delete_job(self, job: Manifest) -> bool:
        del self.objects["Job", job["metadata"]["name"]]
        return True

    def _run_node(self, node: Node) -> None:
        down_for = self.time.seconds - node.down_since
        answers = node.up and node.reachable
        node.ready = answers or down_for < NOT_READY_SECONDS
        for pod in [pod for pod in self.all("Pod") if pod["spec"].get("nodeName") == node.name]:
            deadline = parse_time(pod["metadata"].get("deletionTimestamp"))
            if deadline and answers and self.time.now() >= deadline - timedelta(seconds=GRACE_SECONDS - 2):
                del self.objects["Pod", pod["metadata"]["name"]]
            elif not answers and down_for > NOT_READY_SECONDS + EVICTION_SECONDS:
                gone = self.time.now() + timedelta(seconds=GRACE_SECONDS)
                pod["metadata"].setdefault("deletionTimestamp", format_time(gone))
        if answers and node.ready and self.pod_of(node.name) is None:
            self._bind(node)
        pod = self.pod_of(node.name)
        if pod is not None and answers and pod["status"]["phase"] == "Pending" and self.time.seconds >= pod["starts"]:
            host = node.name.removeprefix("node-").replace("-", ".")
            pod["status"] = {
                "phase": "Running",
                "podIP": f"10.0.{host}",
                "containerStatuses": [{"state": {"running": {}}}],
            }
            self.touch(pod)

    def _bind(self, node: Node) -> None:
        """Bind a waiting pod: pods of one Job share the nodes of one slice, as exclusive placement has it."""
        for pod in self.all("Pod"):
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            owner = owner_of(pod)
            bound = [other for other in self.all("Pod") if other["spec"].get("nodeName")]
            on_slice = {owner_of(other) for other in bound if self._slice_of(other) == node.slice}
            elsewhere = any(owner_of(other) == owner and self._slice_of(other) != node.slice for other in bound)
            if on_slice <= {owner} and not elsewhere and node.name not in self._avoided_by(owner):
                pod["spec"]["nodeName"] = node.name
                pod["status"].pop("conditions", None)
                pod["starts"] = self.time.seconds + POD_START_SECONDS
                self.touch(pod)
                return

    def _mark_unschedulable(self) -> None:
        """Report the pods that have found no node, once each."""
        for pod in self.all("Pod"):
            if not (pod["spec"].get("nodeName") or "conditions" in pod["status"]):
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                pod["status"]["conditions"] = [condition | {"lastTransitionTime": format_time(self.time.now())}]
                self.touch(pod)

    def _avoided_by(self, job: str) -> set[str]:
        """Return the nodes that the pods of a Job must not lie on."""
        name = next((item["metadata"]["name"] for item in self.all("Job") if item["metadata"]["uid"] == job), "")
        jobset = self.objects.get(("JobSet", name.rpartition("-slice-")[0]))
        if jobset is None:
            return set()
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        required = get_value(pod, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = required.get("nodeSelectorTerms", [])
        return {node for term in terms for field in term["matchFields"] for node in field["values"]}

    def _slice_of(self, pod: Manifest) -> int:
        return self.nodes[pod["spec"]["nodeName"]].slice

    def _node_manifest(self, node: Node) -> Manifest:
        status = "True" if node.ready else "Unknown"
        taints = [{"key": node.taint, "effect": "NoSchedule"}] if node.taint else []
        return {
            "metadata": {"name": node.name},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        }

    @contextmanager
    def _write(self, verb: str, manifest: Manifest) -> Iterator[None]:
        """One write to the API server: faults strike before it, or after it has been done."""
        name = f"{verb} {manifest['kind']}"
        self.writes.append(name)
        self.before(name)
        yield
        self.after(name)


def sent(manifest: Manifest) -> Manifest:
    """Return an object as the API server receives it."""
    arrived: Manifest = json.loads(json.dumps(manifest))
    return arrived


def copied(manifest: Manifest) -> Manifest:
    """Return a copy of what the API server has, many times sooner than `copy.deepcopy` makes one."""
    copy: Manifest = marshal.loads(marshal.dumps(manifest))  # noqa: S302  # its own words
    return copy


def _child(kind: str, name: str, owner: str, labels: dict[str, str], status: dict[str, Any]) -> Manifest:
    return {
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": labels,
            "ownerReferences": [{"controller": True, "uid": owner}],
        },
        "spec": {},
        "status": status,
    }


def _labels(jobset: Manifest) -> dict[str, str]:
    labels = jobset["metadata"]["labels"]
    return {key: labels[key] for key in (UID_LABEL, SLICE_OFFSET_LABEL)}


def _belongs(pod: Manifest, job: Manifest, host: int) -> bool:
    return owner_of(pod) == job["metadata"]["uid"] and pod["metadata"]["labels"][HOST_LABEL] == str(host)


def owner_of(manifest: Manifest) -> str:
    """Return the UID of an object's owner; empty where it has none."""
    owners: list[dict[str, str]] = manifest["metadata"]["ownerReferences"]
    return owners[0]["uid"] if owners else ""
