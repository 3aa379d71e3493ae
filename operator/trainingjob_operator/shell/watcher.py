"""Watch events from the API server, with kopf.

kopf restarts watches after expired versions, stalls and lost connections. The operator uses only kopf's low-level event
handlers, which need no finalizer and write nothing.

kopf runs in a thread with a separate event loop. In the main thread, kopf would install signal handlers. At its end, it
cancels every task of its loop. The thread forwards events to the operator's loop. If kopf fails, it restarts, and its
first list contains the missed changes.
"""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import kopf
from kopf._cogs.structs.credentials import Vault  # no public API exists for this and the next ones
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.shell.api import FIELD_MANAGER, LIST_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from trainingjob_operator.shell.kinds import CHILDREN, TRAINING_JOB, Kind
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.store import EventType, trim_manifest

type OnEvent = Callable[[Kind, EventType, Manifest], None]

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0
WATCH_TIMEOUT_SECONDS = 300
WATCH_IDLE_SECONDS = 70
"""Idle timeout of a watch. The API server sends bookmarks each minute if there are no other events."""
CANCEL_INTERVAL_SECONDS = 0.1
WATCH_PAGE_SIZE = 32
"""Page size of the list with which kopf starts a watch. A single object may have a megabyte."""
KOPF_PARENT_TASKS = ("spawner of ", "cleaner of ")
"""Name prefixes of kopf tasks that start other tasks. They are cancelled last, so that no task is left."""
_KOPF_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "finalizers")
RETRY_SECONDS = (1, 1, 2, 3, 5)
"""Backoff between the attempts of one request. The last value repeats; a longer `Retry-After` takes precedence.

The last value bounds the time until kopf notices that the API server is back.
"""

log = Log("watching")


class Watcher:
    """Watches kinds and forwards every event to the event loop of its creator."""

    def __init__(
        self, configuration: Any, namespaces: tuple[str, ...], kinds: Callable[[], Iterable[Kind]], on_event: OnEvent
    ) -> None:
        """Watch namespaces (empty: all) with a client configuration. `kinds` is called at each start."""
        self._configuration = configuration
        self._namespaces = namespaces
        self._kinds = kinds
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._watch: _KopfRun | None = None

    def restart(self) -> None:
        """Restart the watch, because the watched kinds changed."""
        if self._watch:
            self._watch.stop()

    async def run(self) -> None:
        """Watch until cancelled. A cancellation waits for the end of the thread."""
        backoff = FIRST_BACKOFF_SECONDS
        with ThreadPoolExecutor(1, thread_name_prefix="watch") as executor:
            while True:
                started_at = self._loop.time()
                self._watch = _KopfRun(
                    self._configuration, self._namespaces, tuple(self._kinds()), self._forward_to_loop
                )
                thread = self._loop.run_in_executor(executor, self._watch.main)
                try:
                    await asyncio.shield(thread)
                    if self._watch.is_stopped:
                        continue
                    log.warning("the watch ended without a reason; restarting it")
                except asyncio.CancelledError:
                    self._watch.stop()
                    await asyncio.wait([thread])
                    raise
                except Exception as error:  # noqa: BLE001  # the operator needs a watch after any error of kopf
                    log.warning("the watch ended; restarting it", error=f"{type(error).__name__}: {error}")
                was_stable = self._loop.time() - started_at > MAX_BACKOFF_SECONDS
                backoff = FIRST_BACKOFF_SECONDS if was_stable else min(backoff * 2, MAX_BACKOFF_SECONDS)
                await asyncio.sleep(backoff)

    def _forward_to_loop(self, kind: Kind, event: EventType, manifest: Manifest) -> None:
        self._loop.call_soon_threadsafe(self._on_event, kind, event, manifest)


class _InfiniteBackoff:
    """Infinite backoff sequence of a kopf request. At the end of a finite one, kopf fails or retries immediately."""

    def __iter__(self) -> Iterator[float]:
        """Return the backoff of one request."""
        return itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1]))


class _NoDiffBase(kopf.DiffBaseStorage):
    """A state of objects that is always empty, since no handler reads differences.

    kopf copies each object deeply to compare it with its former state, which takes longer than a reconcile.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return an empty state."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return no former state."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoMemories(ResourceMemories):
    """Records of objects that are all forgotten after their event.

    kopf keeps 1.7 KiB for each object, with which it resumes handlers and daemons. Handlers of events need none.
    """

    async def recall(self, raw_body: kopf.RawBody, **options: Any) -> ResourceMemory:
        """Return a new record."""
        return await super().recall(raw_body, **options | {"ephemeral": True})


class _KopfRun:
    """One run of kopf, in the thread that calls `main`."""

    def __init__(
        self, configuration: Any, namespaces: tuple[str, ...], kinds: tuple[Kind, ...], on_event: OnEvent
    ) -> None:
        self._configuration = configuration
        self._namespaces = namespaces
        self._kinds = kinds
        self._on_event = on_event
        self._is_stopped = threading.Event()
        self._loop_and_task: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    @property
    def is_stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._is_stopped.is_set()

    def main(self) -> None:
        """Watch until stopped. Raises the error that ends kopf."""
        asyncio.run(self._operate())

    def stop(self) -> None:
        """Stop the watch. May be called from any thread, and before `main`."""
        self._is_stopped.set()
        if self._loop_and_task:
            loop, task = self._loop_and_task
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                loop.call_soon_threadsafe(task.cancel)

    async def _operate(self) -> None:
        vault = Vault()
        session = make_session(self._configuration)
        task = asyncio.create_task(self._watch(vault, session))
        self._loop_and_task = asyncio.get_running_loop(), task
        if self.is_stopped:
            task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):  # kopf's stop flag would wait for hung requests
                await task
        finally:
            await _cancel_all_tasks()
            await vault.close()
            await session.close()

    async def _watch(self, vault: Vault, session: aiohttp.ClientSession) -> None:
        info = kopf.AiohttpSession(server=self._configuration.host, aiohttp_session=session)
        tasks = await kopf.spawn_tasks(
            registry=make_registry(info, self._kinds, self._on_event),
            settings=make_settings(self._kinds),
            standalone=True,
            identity=FIELD_MANAGER,  # type: ignore[arg-type]  # the default needs a user name, which containers lack
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            vault=vault,
            memories=NoMemories(),
        )
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _cancel_all_tasks() -> None:
    """Cancel all tasks of kopf until none is left, since a watch that is cancelled once may restart."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        child_tasks = {task for task in tasks if not task.get_name().startswith(KOPF_PARENT_TASKS)}
        for task in child_tasks or tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_INTERVAL_SECONDS)


def make_registry(info: kopf.AiohttpSession, kinds: Iterable[Kind], on_event: OnEvent) -> kopf.OperatorRegistry:
    """Return kopf's handlers: log in with an HTTP session, and forward every event of the given kinds.

    The forwarded manifests are trimmed, which keeps queued events small. Only a job without a status is whole.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="client")
    async def login(**_: Any) -> kopf.AiohttpSession:
        return info

    for kind in kinds:

        async def forward_event(event: kopf.RawEvent, kind: Kind = kind, **_: Any) -> None:
            manifest = dict(event["object"])
            is_new_job = kind is TRAINING_JOB and "status" not in manifest  # its first reconcile needs the whole job
            on_event(kind, event["type"], manifest if is_new_job else trim_manifest(kind, manifest))
            _drop_unread_fields(event["object"])

        kopf.on.event(*_selector(kind), registry=registry, id=kind.plural)(forward_event)
    return registry


def _drop_unread_fields(manifest: Any) -> None:
    """Drop the fields that kopf does not read: it keeps the event of an object for a second, in which hundreds come."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key in _KOPF_METADATA}
    manifest.clear()
    manifest["metadata"] = metadata  # a new object, since the forwarded manifest may hold the former one


def make_settings(kinds: Iterable[Kind]) -> kopf.OperatorSettings:
    """Return kopf's settings: only objects of jobs, no writes, and a timeout for every request."""
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None  # it sends SIGKILL to the process, which may still wait for kopf
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.scanning.disabled = True  # scanning watches all CRDs and namespaces; `Reflector` finds missing kinds
    settings.networking.request_timeout = LIST_TIMEOUT_SECONDS
    settings.networking.connect_timeout = REQUEST_TIMEOUT_SECONDS
    settings.networking.error_backoffs = _InfiniteBackoff()
    settings.watching.connect_timeout = REQUEST_TIMEOUT_SECONDS
    settings.watching.server_timeout = WATCH_TIMEOUT_SECONDS
    settings.watching.inactivity_timeout = WATCH_IDLE_SECONDS
    settings.watching.chunk_size = WATCH_PAGE_SIZE
    settings.queueing.idle_timeout = 1.0
    for kind in kinds:
        if kind in CHILDREN:
            settings.watching.label_selectors[_selector(kind)] = UID_LABEL
    return settings


def make_session(configuration: Any) -> aiohttp.ClientSession:
    """Return an HTTP session that reads the current token for every request.

    The session converts a 401 into a connection error, which kopf retries with its backoff. On a 401, kopf would close
    all open watches, retry immediately without limit, and might never stop.
    """

    async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if header := await configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            request.headers["Authorization"] = header
        response = await handler(request)
        if response.status == 401:
            response.close()
            raise aiohttp.ClientConnectionError("401: the API server rejects the token; it may have expired")
        return response

    info = kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),  # each watch holds a connection
        proxy=configuration.proxy,
        middlewares=(authorize,),
    )


def _selector(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural
