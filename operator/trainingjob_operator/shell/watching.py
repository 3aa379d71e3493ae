"""Watch events from the API server, by kopf.

kopf keeps watches alive through expired versions, stalls and lost connections. Only its low-level events are used: they
need no finalizer and write nothing. It runs in a thread with an event loop of its own, since it takes over signals and,
when it ends, cancels every task of its loop; what it hears is handed to the operator's loop. When it fails it is
started again; what was missed meanwhile comes with its first list.
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
from kopf._cogs.structs.credentials import Vault  # has no public name

from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.shell.api import FIELD_MANAGER, SECONDS_A_PAGE, SECONDS_A_REQUEST
from trainingjob_operator.shell.kinds import CHILDREN, Kind
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.store import EventType, slim_down

type OnEvent = Callable[[Kind, EventType, Manifest], None]

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0
SECONDS_A_WATCH = 300
SECONDS_OF_SILENCE = 70
"""After this a watch is dead: the API server sends bookmarks each minute where nothing else happens."""
SECONDS_BETWEEN_CANCELS = 0.1
WATCH_PAGE_SIZE = 32
"""kopf begins a watch with a list, whose objects may have a megabyte each."""
KOPF_OWNERS = ("spawner of ", "cleaner of ")
"""Names of tasks of kopf that own others, begun or not. They end last, so that none is left behind."""
RETRY_SECONDS = (1, 1, 2, 3, 5)
"""Between the tries of one request; the last one again and again, or what the API server asks for where that is longer.

So long after its return may an API server go unnoticed.
"""

log = Log("watching")


class Watcher:
    """Watches some kinds and hands every event to the loop that it was made in."""

    def __init__(
        self, configuration: Any, namespaces: tuple[str, ...], kinds: Callable[[], Iterable[Kind]], on_event: OnEvent
    ) -> None:
        """Watch some namespaces (none: all) with a client's configuration; `kinds` is asked at each start."""
        self._configuration = configuration
        self._namespaces = namespaces
        self._kinds = kinds
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._watch: _Watch | None = None

    def restart(self) -> None:
        """Begin anew: other kinds are to be watched."""
        if self._watch:
            self._watch.stop()

    async def run(self) -> None:
        """Watch for ever. Cancelled, it returns when the thread has ended."""
        backoff = FIRST_BACKOFF_SECONDS
        with ThreadPoolExecutor(1, thread_name_prefix="watch") as executor:
            while True:
                begun = self._loop.time()
                self._watch = _Watch(self._configuration, self._namespaces, tuple(self._kinds()), self._hand_over)
                thread = self._loop.run_in_executor(executor, self._watch.main)
                try:
                    await asyncio.shield(thread)
                    if self._watch.is_stopped:
                        continue
                    log.warning("the watch ended without a reason; it begins anew")
                except asyncio.CancelledError:
                    self._watch.stop()
                    await asyncio.wait([thread])
                    raise
                except Exception as error:  # noqa: BLE001  # whatever ends kopf, training needs a watch
                    log.warning("the watch ended; it begins anew", error=f"{type(error).__name__}: {error}")
                has_lived = self._loop.time() - begun > MAX_BACKOFF_SECONDS
                backoff = FIRST_BACKOFF_SECONDS if has_lived else min(backoff * 2, MAX_BACKOFF_SECONDS)
                await asyncio.sleep(backoff)

    def _hand_over(self, kind: Kind, event: EventType, manifest: Manifest) -> None:
        self._loop.call_soon_threadsafe(self._on_event, kind, event, manifest)


class _Pauses:
    """What kopf waits between the tries of one request. They do not end: at their end it fails, or asks at once."""

    def __iter__(self) -> Iterator[float]:
        """Return those of one request."""
        return itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1]))


class _Watch:
    """One life of kopf, in the thread that calls `main`."""

    def __init__(
        self, configuration: Any, namespaces: tuple[str, ...], kinds: tuple[Kind, ...], on_event: OnEvent
    ) -> None:
        self._configuration = configuration
        self._namespaces = namespaces
        self._kinds = kinds
        self._on_event = on_event
        self._is_stopped = threading.Event()
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    @property
    def is_stopped(self) -> bool:
        """Return whether it ended, or is to end, because it was asked to."""
        return self._is_stopped.is_set()

    def main(self) -> None:
        """Watch until stopped. Raises whatever ends kopf."""
        asyncio.run(self._operate())

    def stop(self) -> None:
        """End soon; may be called from any thread, and before `main` has begun."""
        self._is_stopped.set()
        if self._inside:
            loop, task = self._inside
            with contextlib.suppress(RuntimeError):  # its loop has just closed
                loop.call_soon_threadsafe(task.cancel)

    async def _operate(self) -> None:
        vault = Vault()
        session = make_session(self._configuration)
        task = asyncio.create_task(self._watch(vault, session))
        self._inside = asyncio.get_running_loop(), task
        if self.is_stopped:
            task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):  # not by kopf's flag: it would wait for hung requests
                await task
        finally:
            await _end_tasks()
            await vault.close()
            await session.close()

    async def _watch(self, vault: Vault, session: aiohttp.ClientSession) -> None:
        info = kopf.AiohttpSession(server=self._configuration.host, aiohttp_session=session)
        tasks = await kopf.spawn_tasks(
            registry=make_registry(info, self._kinds, self._on_event),
            settings=make_settings(self._kinds),
            standalone=True,
            identity=FIELD_MANAGER,  # type: ignore[arg-type]  # else it asks for a user's name, and a container has none
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            vault=vault,
        )
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()


async def _end_tasks() -> None:
    """End all that kopf has begun. It cannot do that itself: a watch that is cancelled once may begin anew."""
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in {one for one in left if not one.get_name().startswith(KOPF_OWNERS)} or left:
            task.cancel()
        await asyncio.wait(left, timeout=SECONDS_BETWEEN_CANCELS)


def make_registry(info: kopf.AiohttpSession, kinds: Iterable[Kind], on_event: OnEvent) -> kopf.OperatorRegistry:
    """Return what kopf is to do: ask by a session, and pass every event of some kinds on."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="client")
    async def login(**_: Any) -> kopf.AiohttpSession:
        return info

    for kind in kinds:

        async def pass_on(event: kopf.RawEvent, kind: Kind = kind, **_: Any) -> None:
            on_event(kind, event["type"], slim_down(kind, dict(event["object"])))  # what waits for its turn is small

        kopf.on.event(*_selector(kind), registry=registry, id=kind.plural)(pass_on)
    return registry


def make_settings(kinds: Iterable[Kind]) -> kopf.OperatorSettings:
    """Return kopf's settings: only objects of jobs, nothing written, every request with an end."""
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None  # it would kill the thread that we may still wait for
    settings.posting.enabled = False
    settings.scanning.disabled = True  # it would watch all CRDs and namespaces; the feed notices missing kinds itself
    settings.networking.request_timeout = SECONDS_A_PAGE
    settings.networking.connect_timeout = SECONDS_A_REQUEST
    settings.networking.error_backoffs = _Pauses()
    settings.watching.connect_timeout = SECONDS_A_REQUEST
    settings.watching.server_timeout = SECONDS_A_WATCH
    settings.watching.inactivity_timeout = SECONDS_OF_SILENCE
    settings.watching.chunk_size = WATCH_PAGE_SIZE
    settings.queueing.idle_timeout = 1.0
    for kind in kinds:
        if kind in CHILDREN:
            settings.watching.label_selectors[_selector(kind)] = UID_LABEL
    return settings


def make_session(configuration: Any) -> aiohttp.ClientSession:
    """Return a session with the client's server, which reads the token anew for every request.

    kopf never hears that a token is not taken: it would close all watches that are open, ask again at once and without
    end, and may never end itself. To it that is a connection that failed, which it tries again at its pace.
    """

    async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if header := await configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            request.headers["Authorization"] = header
        response = await handler(request)
        if response.status == 401:
            response.close()
            raise aiohttp.ClientConnectionError("401: the API server does not take the token; it may have expired")
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
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),  # each watch keeps a connection
        proxy=configuration.proxy,
        middlewares=(authorize,),
    )


def _selector(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural
