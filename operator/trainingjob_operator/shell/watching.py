"""Watch events from the API server, by kopf.

kopf keeps watches alive through expired versions, stalls and lost connections. Only its low-level events are used: they
need no finalizer and write nothing. It runs in a thread with an event loop of its own, since it takes over signals and,
when it ends, cancels every task of its loop; what it hears is handed to the operator's loop. When it fails it is
started again; what was missed meanwhile comes with its first list.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
from kopf._cogs.structs.credentials import Vault  # has no public name

from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.shell.api import FIELD_MANAGER, PAGE_SIZE, SECONDS_A_PAGE, SECONDS_A_REQUEST
from trainingjob_operator.shell.kinds import CHILDREN, Kind
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.store import EventType

type OnEvent = Callable[[Kind, EventType, Manifest], None]

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0
CREDENTIALS_LIFE = timedelta(minutes=10)
"""After this kopf asks for credentials again: kubelets replace tokens while the old ones are still good."""
SECONDS_A_WATCH = 300
SECONDS_OF_SILENCE = 70
"""After this a watch is dead: the API server sends bookmarks each minute where nothing else happens."""
RETRY_SECONDS = (1, 1, 2, 3, 5)
"""Between the tries of one request. The last is how long after its return an API server may go unnoticed."""

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


class _Watch:
    """One life of kopf, in the thread that calls `main`."""

    def __init__(
        self, configuration: Any, namespaces: tuple[str, ...], kinds: tuple[Kind, ...], on_event: OnEvent
    ) -> None:
        self._namespaces = namespaces
        self._registry = make_registry(configuration, kinds, on_event)
        self._settings = make_settings(kinds)
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
        task = asyncio.create_task(self._watch(vault))
        self._inside = asyncio.get_running_loop(), task
        if self.is_stopped:
            task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):  # not by kopf's flag: it would wait for hung requests
                await task
        finally:
            await _close(vault)

    async def _watch(self, vault: Vault) -> None:
        await kopf.operator(
            registry=self._registry,
            settings=self._settings,
            standalone=True,
            identity=FIELD_MANAGER,  # type: ignore[arg-type]  # else it asks for a user's name, and a container has none
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            vault=vault,
        )


async def _close(vault: Vault) -> None:
    """Close kopf's connections: where it fails or is cancelled it leaves them open, and tasks that use them."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await vault.close()


def make_registry(configuration: Any, kinds: Iterable[Kind], on_event: OnEvent) -> kopf.OperatorRegistry:
    """Return what kopf is to do: log in like the client, and pass every event of some kinds on."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, id="client")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration, datetime.now(UTC))

    for kind in kinds:

        async def pass_on(event: kopf.RawEvent, kind: Kind = kind, **_: Any) -> None:
            on_event(kind, event["type"], dict(event["object"]))

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
    settings.networking.error_backoffs = RETRY_SECONDS
    settings.watching.connect_timeout = SECONDS_A_REQUEST
    settings.watching.server_timeout = SECONDS_A_WATCH
    settings.watching.inactivity_timeout = SECONDS_OF_SILENCE
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = 1.0
    for kind in kinds:
        if kind in CHILDREN:
            settings.watching.label_selectors[_selector(kind)] = UID_LABEL
    return settings


async def connection_info(configuration: Any, now: datetime) -> kopf.ConnectionInfo:
    """Return the client's server and credentials, read anew, as kopf takes them."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token or None,
        proxy_url=configuration.proxy,
        expiration=now + CREDENTIALS_LIFE if token else None,
    )


def _selector(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural
