"""Keeps the store true: full lists at the start and every few minutes, watch events in between.

A watch can stall or lose an event without a word; then the next list repairs what is known, so that nothing is ever
wrong for longer than `RELIST_SECONDS`. Whatever changed is told to one listener, with the jobs that it concerns.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator

from trainingjob_operator.core.manifests import text
from trainingjob_operator.core.names import JOB_LABEL, UID_LABEL
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.kinds import CHILDREN, NODE, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import ClusterUnavailableError, Manifest, MissingKindError
from trainingjob_operator.shell.store import EventType, Key, Store, key_of, label, slim_down

KINDS = (TRAINING_JOB, *CHILDREN, NODE)
RELIST_SECONDS = 180.0
MISSING_SECONDS = 10.0
"""How often to look again for a kind that the API server does not know, and for a server that does not answer."""

MAX_UNKNOWN = 2048
"""Objects of jobs that are not known (yet) that are kept, by their last change."""

log = Log("feed")


class Feed:
    """Fills a store and says which jobs a change concerns."""

    def __init__(
        self,
        api: Api,
        store: Store,
        namespaces: tuple[str, ...],
        wake: Callable[[str, str], None],
        on_kinds: Callable[[], None] = lambda: None,
    ) -> None:
        """Feed a store with the objects of some namespaces (none: of all).

        `wake` is told the namespace and name of each job that a change concerns; `on_kinds` is called when `missing`
        has changed.
        """
        self.missing: frozenset[Kind] = frozenset()
        """Kinds that the API server did not know when it was last asked."""
        self.primed = asyncio.Event()
        """Set when every kind was listed once: before that, what the store does not hold may yet exist."""
        self._api = api
        self._store = store
        self._namespaces = namespaces
        self._wake = wake
        self._on_kinds = on_kinds
        self._unknown: OrderedDict[tuple[Kind, Key], Manifest] = OrderedDict()
        self._heard_at = asyncio.get_running_loop().time()
        self._asked = 0.0  # seconds that the API server asked to wait, when all was last listed

    @property
    def silent_seconds(self) -> float:
        """Return how long ago the feed last tried to list: it lives even when the API server does not."""
        return asyncio.get_running_loop().time() - self._heard_at

    async def run(self) -> None:
        """List everything for ever; more often what is missing."""
        clock = asyncio.get_running_loop().time
        next_full, wanting = clock(), set[Kind]()
        while True:
            is_full = clock() >= next_full
            next_full = clock() + RELIST_SECONDS if is_full else next_full
            self._asked = 0.0
            failed = {kind for kind in KINDS if (is_full or kind in wanting) and not await self._try_to_list(kind)}
            wanting = failed | self.missing
            if not failed:
                self.primed.set()
            pause = MISSING_SECONDS if wanting else RELIST_SECONDS
            await asyncio.sleep(max(min(pause, next_full - clock()), self._asked, 0.0))

    async def list_all(self, kind: Kind) -> None:
        """List one kind and tell about all that changed. Raises `ClusterUnavailableError`, `MissingKindError`."""
        shelf = self._store[kind]
        selector = UID_LABEL if kind in CHILDREN else ""
        for namespace in self._namespaces if kind.is_namespaced and self._namespaces else ("",):
            found, version = [], 0
            async for page in self._api.pages(kind, namespace, labels=selector):
                # A page is large, what is kept of it is not.
                found += [slim for item in page.items if self._is_of_a_job(kind, slim := slim_down(kind, item))]
                version = version or page.resource_version
            for changed in shelf.replace(found, version, namespace):
                self._tell(kind, changed)
                if kind is TRAINING_JOB:
                    self._take_in_children(changed)

    def event(self, kind: Kind, event: EventType, manifest: Manifest) -> None:
        """Take in a watch event."""
        shelf = self._store[kind]
        if event == "DELETED":
            self._unknown.pop((kind, key_of(manifest)), None)
            is_news = shelf.remove(manifest)
        else:
            is_news = self._is_of_a_job(kind, manifest) and shelf.put(manifest)
        if is_news:
            self._tell(kind, manifest)
        if kind is TRAINING_JOB:
            self._take_in_children(manifest)

    def _is_of_a_job(self, kind: Kind, manifest: Manifest) -> bool:
        """Return whether an object must be kept: anybody can label anything with the UID of any job.

        An event about a child can come before the event about its job: a few such objects wait for their job.
        """
        if kind not in CHILDREN:
            return True
        key, uid = key_of(manifest), label(manifest, UID_LABEL)
        place = (kind, key)
        if uid in self._store[TRAINING_JOB].uids(key[0]) or self._store[kind].find(*key):
            self._unknown.pop(place, None)
            return True
        self._unknown[place] = slim_down(kind, manifest)
        self._unknown.move_to_end(place)
        if len(self._unknown) > MAX_UNKNOWN:
            self._unknown.popitem(last=False)
        return False

    def _take_in_children(self, job: Manifest) -> None:
        """Keep what waited for a job that is known now."""
        namespace, uid = key_of(job)[0], text(job, "metadata", "uid")
        if uid not in self._store[TRAINING_JOB].uids(namespace):
            return
        for (kind, key), manifest in tuple(self._unknown.items()):
            if key[0] == namespace and label(manifest, UID_LABEL) == uid:
                del self._unknown[kind, key]
                if self._store[kind].put(manifest):
                    self._tell(kind, manifest)

    async def _try_to_list(self, kind: Kind) -> bool:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            await self.list_all(kind)
        except MissingKindError as error:
            if kind not in self.missing:
                log.warning("the API server does not know a kind", kind=kind.name, error=str(error))
                self._set_missing(self.missing | {kind})
            return True
        except ClusterUnavailableError as error:
            self._asked = max(self._asked, error.retry_after)
            log.warning("cannot list", kind=kind.name, error=str(error))
            return False
        if kind in self.missing:
            log.info("the API server knows a kind now", kind=kind.name)
            self._set_missing(self.missing - {kind})
        return True

    def _set_missing(self, missing: frozenset[Kind]) -> None:
        self.missing = missing
        self._on_kinds()

    def _tell(self, kind: Kind, manifest: Manifest) -> None:
        for namespace, name in self._jobs_of(kind, manifest):
            self._wake(namespace, name)

    def _jobs_of(self, kind: Kind, manifest: Manifest) -> Iterator[Key]:
        """Yield the jobs that an object belongs to: a node to those that have a pod on it."""
        namespace, name = key_of(manifest)
        if kind is TRAINING_JOB:
            yield namespace, name
        elif kind is NODE:
            pods = (pod for pod in self._store[POD] if pod["spec"].get("nodeName") == name)
            yield from {(key_of(pod)[0], label(pod, JOB_LABEL)) for pod in pods}
        elif job := label(manifest, JOB_LABEL):
            yield namespace, job
