"""Synchronization of the store with the API server: lists at startup and every few minutes, watch events in between.

A watch can silently stall or lose an event. The next list corrects the store, so that no error lasts longer than
`RELIST_SECONDS`. For each change, a callback wakes the jobs that the object belongs to.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.core.names import CA_CONFIG_MAP, JOB_LABEL, UID_LABEL
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    Manifest,
    MissingKindError,
    UnreadableError,
)
from trainingjob_operator.shell.kinds import CHILDREN, CONFIG_MAP, NODE, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.new_jobs import NewJobs
from trainingjob_operator.shell.own_writes import OwnWrites
from trainingjob_operator.shell.store import EventType, Key, Store, key_of, label, trim_manifest
from trainingjob_operator.shell.unreadable_namespaces import UnreadableNamespaces

KINDS = (TRAINING_JOB, *CHILDREN, NODE)
RELIST_SECONDS = 180.0
RETRY_LIST_SECONDS = 10.0
"""Retry interval of lists that fail or are forbidden, and of kinds that the API server does not serve."""

MAX_PENDING = 2048
"""Maximum number of cached objects whose job is not known yet. The least recently changed ones are dropped."""

log = Log("feed")


class Reflector:
    """Updates a store and wakes the jobs that a change affects."""

    def __init__(
        self,
        api: Api,
        store: Store,
        namespaces: tuple[str, ...],
        wake: Callable[[str, str], None],
        on_missing_kinds: Callable[[], None] = lambda: None,
    ) -> None:
        """Update a store with the objects of the given namespaces (empty: of all).

        `wake` is called with namespace and name of each affected job.
        `on_missing_kinds` is called after each change of `missing_kinds`.
        """
        self.missing_kinds: frozenset[Kind] = frozenset()
        """Kinds that the API server did not serve at the last list."""
        self.synced = asyncio.Event()
        """Set when every kind was listed once. Before that, an object that the store lacks can exist.

        It does not wait for `unreadable` namespaces, unless all are: a deleted one must not stop the others' jobs.
        """
        self.unreadable = UnreadableNamespaces()
        """Watched namespaces that the operator may not list. Without limited namespaces, a forbidden list is a failure.
        """
        self._api = api
        self._store = store
        self._namespaces = namespaces
        self._wake = wake
        self._on_missing_kinds = on_missing_kinds
        self.own_writes = OwnWrites(self._wake_jobs)
        """Writes of the operator, whose events wake no job."""
        self.new_jobs = NewJobs()
        self._pending: OrderedDict[tuple[Kind, Key], Manifest] = OrderedDict()
        self._last_list_at = asyncio.get_running_loop().time()
        self._requested_wait = 0.0  # longest wait in seconds that the API server requested during the last lists

    @property
    def seconds_since_list(self) -> float:
        """Return the seconds since the last start of a list. They show liveness even if the API server is down."""
        return asyncio.get_running_loop().time() - self._last_list_at

    async def run(self) -> None:
        """List all kinds periodically, and retry failed and missing kinds more often. Never returns."""
        clock = asyncio.get_running_loop().time
        next_full, kinds_to_retry = clock(), set[Kind]()
        while True:
            is_full = clock() >= next_full
            next_full = clock() + RELIST_SECONDS if is_full else next_full
            self._requested_wait = 0.0
            unreadable, failed = self.unreadable.names(), set()
            for kind in KINDS:
                is_due = is_full or kind in kinds_to_retry
                scopes = self._scopes(kind) if is_due else unreadable if kind.is_namespaced else ()
                if scopes and not await self._try_to_list(kind, scopes):
                    failed.add(kind)
            self.unreadable.end_round(is_complete=not failed)
            kinds_to_retry = failed | self.missing_kinds
            unreadable = self.unreadable.names()
            if not failed and (not self._namespaces or unreadable != {*self._namespaces}):
                self.synced.set()
            pause = RETRY_LIST_SECONDS if kinds_to_retry or unreadable else RELIST_SECONDS
            await asyncio.sleep(max(min(pause, next_full - clock()), self._requested_wait, 0.0))

    async def list_all(self, kind: Kind, namespaces: Iterable[str] | None = None) -> None:  # None: all watched ones
        """List one kind and wake the affected jobs. Raises `ClusterUnavailableError`, `MissingKindError`.

        A watched namespace that the operator may not list is recorded as unreadable, and the others are listed. It is
        left out until the next round: the store takes no children of jobs that it does not know.
        """
        for namespace in self._scopes(kind) if namespaces is None else namespaces:
            if self.unreadable.is_forbidden(namespace):
                continue
            try:
                await self._list_namespace(kind, namespace)
            except UnreadableError as error:
                if not namespace:
                    raise
                self.unreadable.add(namespace, str(error))

    def _scopes(self, kind: Kind) -> tuple[str, ...]:
        """Return the namespaces in which a kind is listed; an empty name stands for the whole cluster."""
        return self._namespaces if kind.is_namespaced and self._namespaces else ("",)

    async def _list_namespace(self, kind: Kind, namespace: str) -> None:
        manifests, version = [], 0
        async for page in self._api.list_pages(kind, namespace, labels=UID_LABEL if kind in CHILDREN else ""):
            # Trimming each page keeps memory low: a page is much larger than its trimmed objects.
            manifests += [
                trimmed for item in page.items if self._should_store(kind, trimmed := trim_manifest(kind, item))
            ]
            version = version or page.resource_version
        for changed in self._store[kind].replace(manifests, version, namespace):
            self._wake_jobs(kind, changed)
            if kind is TRAINING_JOB:
                self._store_pending_children(changed)

    def handle_event(self, kind: Kind, event: EventType, manifest: Manifest) -> None:
        """Apply a watch event to the store."""
        kind_store = self._store[kind]
        if event == "DELETED":
            self._pending.pop((kind, key_of(manifest)), None)
            must_wake = kind_store.remove(manifest)
        else:
            is_changed = self._should_store(kind, manifest) and kind_store.put(manifest)
            must_wake = is_changed and not self.own_writes.hold(kind, manifest)
        if must_wake:
            self._wake_jobs(kind, manifest)
        if kind is TRAINING_JOB:
            self.new_jobs.handle_event(event, manifest)
            self._store_pending_children(manifest)

    def _should_store(self, kind: Kind, manifest: Manifest) -> bool:
        """Return whether to store an object. A child needs a known job, since any user can set the UID label.

        Only the certificates have no job: one small object for each namespace.

        The event of a child can precede the event of its job, so a limited number of such objects is kept for later.
        """
        key, uid = key_of(manifest), label(manifest, UID_LABEL)
        if kind not in CHILDREN or (kind is CONFIG_MAP and key[1] == CA_CONFIG_MAP):
            return True
        pending_key = (kind, key)
        if uid in self._store[TRAINING_JOB].uids(key[0]) or self._store[kind].find(*key):
            self._pending.pop(pending_key, None)
            return True
        self._pending[pending_key] = trim_manifest(kind, manifest)
        self._pending.move_to_end(pending_key)
        if len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        return False

    def _store_pending_children(self, job: Manifest) -> None:
        """Store the pending children of a job that is now known."""
        namespace, uid = key_of(job)[0], get_text(job, "metadata", "uid")
        if uid not in self._store[TRAINING_JOB].uids(namespace):
            return
        for (kind, key), manifest in tuple(self._pending.items()):
            if key[0] == namespace and label(manifest, UID_LABEL) == uid:
                del self._pending[kind, key]
                if self._store[kind].put(manifest):
                    self._wake_jobs(kind, manifest)

    async def _try_to_list(self, kind: Kind, namespaces: Iterable[str] | None = None) -> bool:
        self._last_list_at = asyncio.get_running_loop().time()
        try:
            await self.list_all(kind, namespaces)
        except MissingKindError as error:
            if kind not in self.missing_kinds:
                log.warning("the API server does not serve a kind", kind=kind.name, error=str(error))
                self._set_missing(self.missing_kinds | {kind})
            return True
        except ClusterUnavailableError as error:
            self._requested_wait = max(self._requested_wait, error.retry_after)
            log.warning("cannot list", kind=kind.name, error=str(error))
            return False
        if kind in self.missing_kinds:
            log.info("the API server serves a kind now", kind=kind.name)
            self._set_missing(self.missing_kinds - {kind})
        return True

    def _set_missing(self, missing: frozenset[Kind]) -> None:
        self.missing_kinds = missing
        self._on_missing_kinds()

    def _wake_jobs(self, kind: Kind, manifest: Manifest) -> None:
        for namespace, name in self._jobs_of(kind, manifest):
            self._wake(namespace, name)

    def _jobs_of(self, kind: Kind, manifest: Manifest) -> Iterator[Key]:
        """Yield the jobs of an object. A node belongs to every job with a pod on it."""
        namespace, name = key_of(manifest)
        if kind is TRAINING_JOB:
            yield namespace, name
        elif kind is NODE:
            pods = (pod for pod in self._store[POD] if pod["spec"].get("nodeName") == name)
            yield from {(key_of(pod)[0], label(pod, JOB_LABEL)) for pod in pods}
        elif job := label(manifest, JOB_LABEL):
            yield namespace, job
