"""Implementation of the `Cluster` interface with the Kubernetes API.

A job is read from the API server, since all fences depend on its `resourceVersion`. Only the first read of a new job
needs no request: the watch event shows the whole job, and the write of the first status is fenced. A job's children
come from the store, without a request. Every write also updates the store, so that the next reconcile reads it.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from trainingjob_operator.core.manifests import get_int, get_text, iter_items
from trainingjob_operator.core.names import CA_CONFIG_MAP
from trainingjob_operator.core.node_signals import NodeSignal
from trainingjob_operator.core.observe.nodes import find_avoid_signal
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.events import EventRecorder
from trainingjob_operator.shell.interfaces import (
    Children,
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    requested_wait_seconds,
)
from trainingjob_operator.shell.kinds import CHILDREN, CONFIG_MAP, EVENT, JOB, JOB_SET, NODE, POD, TRAINING_JOB, kind_of
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.reflector import Reflector
from trainingjob_operator.shell.store import Store, trim_manifest
from trainingjob_operator.shell.workload_reader import WorkloadReader

WARNINGS_SECONDS = 5.0
MAX_WARNINGS = 32
AVOIDED_NODES_SECONDS = 5.0
MAX_AVOIDED_NODES = 256
"""First avoided nodes by name: JobSets list them. Further nodes are not avoided."""
MAX_KEPT_WARNINGS = 4096
"""Newest events that are kept per namespace: users can create any number of events."""

log = Log("cluster")


class KubernetesCluster:
    """Cluster access of the reconciler, with an API client and the store of cached objects."""

    def __init__(
        self,
        api: Api,
        store: Store,
        reflector: Reflector,
        now: Callable[[], datetime],
        own_node: str = "",
        added_signals: tuple[NodeSignal, ...] = (),
    ) -> None:
        """Read from a store that `reflector` updates. `own_node` is the node of the operator's pod. Empty: none."""
        self._added_signals = added_signals
        self._avoided_nodes: tuple[float, frozenset[str]] = (-AVOIDED_NODES_SECONDS, frozenset())  # with their time
        self._api = api
        self._store = store
        self._reflector = reflector
        self._own_node = own_node
        self._events = EventRecorder(api, now)
        self._workloads = WorkloadReader(api)
        self._warnings: dict[
            str, tuple[float, tuple[Manifest, ...]]
        ] = {}  # by namespace: the time of the last read or failed read, and its events

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Read the TrainingJob from the API server, the first time from its watch event. None: it does not exist."""
        if new_job := self._reflector.new_jobs.take(namespace, name):
            return new_job
        try:
            job = await self._api.get(TRAINING_JOB, namespace, name)
        except MissingKindError:
            return None  # without the CRD, no job exists
        if job is not None:
            self._store.put(TRAINING_JOB, job)
        return job

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        """Return the job's children from the store, with the nodes of their pods and the recorded nodes."""
        if JOB_SET in self._reflector.missing_kinds:
            raise MissingKindError(
                f"the API server does not serve {JOB_SET.plural} of {JOB_SET.api_version}: JobSet is not installed"
            )
        if not self._reflector.synced.is_set():
            raise ClusterUnavailableError("not all objects are listed yet")
        if reason := self._reflector.unreadable.reason(namespace):
            raise ClusterUnavailableError(f"the operator may not list the objects of namespace '{namespace}': {reason}")
        jobsets, jobs, pods, config_maps = (
            self._store[kind].list_children(namespace, uid) for kind in (JOB_SET, JOB, POD, CONFIG_MAP)
        )
        names = {pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
        nodes = {name: node for name in sorted(names | recorded_nodes) if (node := self._store[NODE].find("", name))}
        warnings: tuple[Manifest, ...] = ()
        if not are_pods_ready(jobsets, jobs):
            warnings = filter_warnings(await self._read_warnings(namespace), (*jobsets, *jobs, *pods))
        own_node = self._store[NODE].find("", self._own_node)
        workloads = await self._workloads.read(namespace, jobsets)
        return Children(
            jobsets,
            jobs,
            pods,
            config_maps,
            nodes,
            own_node,
            warnings,
            workloads=workloads,
            certificates=self._store[CONFIG_MAP].find(namespace, CA_CONFIG_MAP),
            added_signals=self._added_signals,
            avoided_nodes=self._find_avoided_nodes(),
        )

    async def create(self, manifest: Manifest) -> None:
        """Create an object."""
        kind, namespace = kind_of(manifest), manifest["metadata"].get("namespace", "")
        try:
            created = await self._reflector.own_writes.write(
                kind, manifest, self._api.create(kind, manifest, namespace)
            )
        except ConflictError as error:  # it may be the operator's, whose answer was lost, before the watch delivers it
            existing = await self._api.get(kind, namespace, manifest["metadata"]["name"]) if kind in CHILDREN else None
            if existing:
                self._store.put(kind, existing)
            raise ConflictError(str(error), existing=existing) from error
        except NotFoundError as error:  # the namespace is gone
            raise ForbiddenError(str(error)) from error
        self._store.put(kind, created)

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply an object under the operator's field manager."""
        kind = kind_of(manifest)
        try:
            self._store.put(kind, await self._api.apply(kind, manifest))
        except NotFoundError as error:
            raise ForbiddenError(str(error)) from error

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        """Delete the object with this UID and, in the background, its dependents."""
        kind = kind_of(manifest)
        remaining = await self._api.delete(kind, manifest, grace_seconds=grace_seconds)
        if remaining is None:
            self._store.remove(kind, manifest)
        else:
            self._store.put(kind, remaining)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the status and return the new job. Raises `ConflictError` if the job's `resourceVersion` changed."""
        replacement = self._api.replace(TRAINING_JOB, {**job, "status": status}, "status")
        written = await self._reflector.own_writes.write(TRAINING_JOB, job, replacement)
        self._store.put(TRAINING_JOB, written)
        return written

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on the job; a failure is only logged."""
        await self._events.write(job, warning=warning, reason=reason, message=message)

    def _find_avoided_nodes(self) -> frozenset[str]:
        """Return the nodes with an `avoid` signal, cached for `AVOIDED_NODES_SECONDS`: a cluster has many nodes."""
        signals = tuple(signal for signal in self._added_signals if signal.effect == "avoid")
        now = asyncio.get_running_loop().time()
        if signals and now - self._avoided_nodes[0] >= AVOIDED_NODES_SECONDS:
            names = (node["metadata"]["name"] for node in self._store[NODE] if find_avoid_signal(node, signals))
            self._avoided_nodes = now, frozenset(heapq.nsmallest(MAX_AVOIDED_NODES, names))
        return self._avoided_nodes[1]

    async def _read_warnings(self, namespace: str) -> tuple[Manifest, ...]:
        """Return the namespace's Warning events, cached for `WARNINGS_SECONDS`: many jobs request them at once."""
        now = asyncio.get_running_loop().time()
        read_at, warnings = self._warnings.get(namespace, (-WARNINGS_SECONDS, ()))
        if now - read_at < WARNINGS_SECONDS:
            return warnings
        events: list[Manifest] = []
        try:
            async for page in self._api.list_pages(EVENT, namespace, fields="type=Warning"):
                events += [trim_manifest(EVENT, event) for event in page.items]
                events = heapq.nlargest(MAX_KEPT_WARNINGS, events, key=event_time)
            read_at, warnings = now, tuple(events)
        except (ClusterUnavailableError, MissingKindError) as error:  # not critical: the cached events suffice
            log.warning("cannot read events", namespace=namespace, error=str(error))
            read_at = now + max(requested_wait_seconds(error) - WARNINGS_SECONDS, 0.0)
        self._warnings = {
            other: entry for other, entry in self._warnings.items() if now - entry[0] < WARNINGS_SECONDS
        } | {namespace: (read_at, warnings)}
        return warnings


def are_pods_ready(jobsets: Iterable[Manifest], jobs: Sequence[Manifest]) -> bool:
    """Return whether every pod of the JobSets is ready or completed. Warning events are then irrelevant.

    A Job that belongs to no JobSet is the preparation.
    """
    num_expected = sum(
        get_int(job, "replicas") or 1 for jobset in jobsets for job in iter_items(jobset, "spec", "replicatedJobs")
    ) + sum(_belongs_to_job(job) for job in jobs)
    ready_jobs = [
        job
        for job in jobs
        if (get_int(job, "status", "ready") or 0) >= (get_int(job, "spec", "parallelism") or 1)
        or get_text(job, "status", "completionTime")
    ]
    return len(ready_jobs) >= num_expected


def _belongs_to_job(job: Manifest) -> bool:
    """Return whether a TrainingJob owns a Job directly."""
    return any(owner.get("kind") == TRAINING_JOB.name for owner in iter_items(job, "metadata", "ownerReferences"))


def filter_warnings(events: Iterable[Manifest], objects: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the events about the given objects, newest first."""
    uids = {get_text(manifest, "metadata", "uid") for manifest in objects}
    matching = [event for event in events if get_text(event, "involvedObject", "uid") in uids]
    return tuple(sorted(matching, key=event_time, reverse=True)[:MAX_WARNINGS])


def event_time(event: Manifest) -> str:
    """Return the last occurrence of an event. The timestamps sort as strings in the order of time."""
    return (
        get_text(event, "series", "lastObservedTime")
        or get_text(event, "lastTimestamp")
        or get_text(event, "eventTime")
    )
