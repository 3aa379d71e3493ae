"""The `Cluster` port over the Kubernetes API.

A job is read fresh, since all fences rest on its version; its children come from the store, at no cost. Everything that
is written goes into the store too, so that the next look sees it.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from datetime import datetime

from trainingjob_operator.core.manifests import items, number, text
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.events import Events
from trainingjob_operator.shell.feed import Feed
from trainingjob_operator.shell.kinds import CONFIG_MAP, EVENT, JOB, JOB_SET, NODE, POD, TRAINING_JOB, kind_of
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import (
    Children,
    ClusterUnavailableError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    asked_seconds,
)
from trainingjob_operator.shell.store import Store, slim_down

WARNINGS_SECONDS = 5.0
MAX_WARNINGS = 32
MAX_KEPT_WARNINGS = 4096
"""Of one namespace, the newest: anybody there may write events."""

log = Log("cluster")


class KubernetesCluster:
    """What `reconcile` reads and writes, over an API server and the store of what is known of it."""

    def __init__(self, api: Api, store: Store, feed: Feed, now: Callable[[], datetime], own_node: str = "") -> None:
        """Use a store that a feed keeps true; `own_node` names the node of the operator itself, if it has one."""
        self._api = api
        self._store = store
        self._feed = feed
        self._own_node = own_node
        self._events = Events(api, now)
        self._warnings: dict[
            str, tuple[float, tuple[Manifest, ...]]
        ] = {}  # by namespace: when they were read, or could not be, and they

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Return the TrainingJob as it is now; None where it is gone."""
        try:
            job = await self._api.get(TRAINING_JOB, namespace, name)
        except MissingKindError:
            return None  # without the kind there are no jobs
        if job is not None:
            self._store.put(TRAINING_JOB, job)
        return job

    async def read_children(self, namespace: str, uid: str) -> Children:
        """Return the job's children as the store has them."""
        if JOB_SET in self._feed.missing:
            raise MissingKindError(
                f"the API server does not know {JOB_SET.plural} of {JOB_SET.api_version}: JobSet is not installed"
            )
        if not self._feed.primed.is_set():
            raise ClusterUnavailableError("not all objects are listed yet")
        jobsets, jobs, pods, config_maps = (
            self._store[kind].of_job(namespace, uid) for kind in (JOB_SET, JOB, POD, CONFIG_MAP)
        )
        names = {pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
        nodes = {name: node for name in sorted(names) if (node := self._store[NODE].find("", name))}
        warnings: tuple[Manifest, ...] = ()
        if not are_settled(jobsets, jobs):
            warnings = warnings_about(await self._read_warnings(namespace), (*jobsets, *jobs, *pods))
        own_node = self._store[NODE].find("", self._own_node)
        return Children(jobsets, jobs, pods, config_maps, nodes, own_node, warnings)

    async def create(self, manifest: Manifest) -> None:
        """Create an object."""
        kind = kind_of(manifest)
        try:
            created = await self._api.create(kind, manifest, manifest["metadata"].get("namespace", ""))
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
        """Delete this very object and, in the background, what it owns."""
        kind = kind_of(manifest)
        left = await self._api.delete(kind, manifest, grace_seconds=grace_seconds)
        if left is None:
            self._store.remove(kind, manifest)
        else:
            self._store.put(kind, left)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the status if the job is still at its `resourceVersion`; return the new job."""
        written = await self._api.replace(TRAINING_JOB, {**job, "status": status}, "status")
        self._store.put(TRAINING_JOB, written)
        return written

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on the job; it is only logged where that fails."""
        await self._events.write(job, warning=warning, reason=reason, message=message)

    async def _read_warnings(self, namespace: str) -> tuple[Manifest, ...]:
        """Return the namespace's Warning events, a few seconds old at most: many jobs ask at once."""
        now = asyncio.get_running_loop().time()
        read_at, warnings = self._warnings.get(namespace, (-WARNINGS_SECONDS, ()))
        if now - read_at < WARNINGS_SECONDS:
            return warnings
        found: list[Manifest] = []
        try:
            async for page in self._api.pages(EVENT, namespace, fields="type=Warning"):
                found += [slim_down(EVENT, event) for event in page.items]
                found = heapq.nlargest(MAX_KEPT_WARNINGS, found, key=event_time)
            read_at, warnings = now, tuple(found)
        except (ClusterUnavailableError, MissingKindError) as error:  # they are only words: those of before will do
            log.warning("cannot read events", namespace=namespace, error=str(error))
            read_at = now + max(asked_seconds(error) - WARNINGS_SECONDS, 0.0)
        self._warnings = {
            other: entry for other, entry in self._warnings.items() if now - entry[0] < WARNINGS_SECONDS
        } | {namespace: (read_at, warnings)}
        return warnings


def are_settled(jobsets: Iterable[Manifest], jobs: Iterable[Manifest]) -> bool:
    """Return whether every pod that the JobSets ask for is up: then no event tells why one is not."""
    num_wanted = sum(
        number(job, "replicas") or 1 for jobset in jobsets for job in items(jobset, "spec", "replicatedJobs")
    )
    up = [
        job
        for job in jobs
        if (number(job, "status", "ready") or 0) >= (number(job, "spec", "parallelism") or 1)
        or text(job, "status", "completionTime")
    ]
    return len(up) >= num_wanted


def warnings_about(events: Iterable[Manifest], objects: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the events about some objects, newest first."""
    uids = {text(manifest, "metadata", "uid") for manifest in objects}
    about = [event for event in events if text(event, "involvedObject", "uid") in uids]
    return tuple(sorted(about, key=event_time, reverse=True)[:MAX_WARNINGS])


def event_time(event: Manifest) -> str:
    """Return when an event last happened; the texts of two times compare as the times do."""
    return text(event, "series", "lastObservedTime") or text(event, "lastTimestamp") or text(event, "eventTime")
