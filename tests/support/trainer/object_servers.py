"""The object stores of a test run, each started once, and stores with a root of their own in them."""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from e2e.cluster.run_program import ClusterError
from e2e.object_stores.servers import BUCKET, SERVE, ObjectServer
from tests.support.trainer.fault_proxy import FaultProxy, serve_faults
from trainingjob_trainer.store.array_paths import open_bucket
from trainingjob_trainer.store.opening import connect_bucket, open_store

SCHEMES = tuple(SERVE)


class ObjectServers:
    """Servers that start with their first use. `folder` holds their files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, ObjectServer] = {}
        self._proxies: dict[str, FaultProxy] = {}
        self._stack = ExitStack()

    def start(self, scheme: str) -> ObjectServer:
        """Return the server of a scheme. The test is skipped if this machine can't build it."""
        if scheme not in self._running:
            folder = self._folder / scheme
            folder.mkdir()
            try:
                self._running[scheme] = self._stack.enter_context(SERVE[scheme](folder))
            except ClusterError as error:
                pytest.skip(f"the object store of {scheme}:// needs Go and its modules: {error}")
        return self._running[scheme]

    def proxy(self, scheme: str) -> FaultProxy:
        """Return a proxy that injects faults in front of the server of a scheme."""
        server = self.start(scheme)
        if scheme not in self._proxies:
            self._proxies[scheme] = self._stack.enter_context(serve_faults(scheme, server.url))
        self._proxies[scheme].stop()
        self._proxies[scheme].injected.clear()
        return self._proxies[scheme]

    @contextmanager
    def environment(self, scheme: str, url: str = "") -> Iterator[None]:
        """Let programs and this process use the server of a scheme; `url` is that of a proxy, empty: none."""
        _forget_connections()
        with patch.dict(os.environ, self.start(scheme).environment(url)):
            yield
        _forget_connections()

    def close(self) -> None:
        """Stop all servers."""
        self._stack.close()


def _forget_connections() -> None:
    open_bucket.cache_clear()
    connect_bucket.cache_clear()


def copy_to_bucket(folder: Path, uri: str) -> None:
    """Copy all files of a folder to a folder of a bucket."""
    source, target = open_store(folder), open_store(uri)
    for entry in source.list_folder():
        names = [f"{entry.name}/{name}" for name in source.list_files(entry.name)] if entry.is_folder else [entry.name]
        for name in names:
            target.write(name, source.read_chunks(name))


def new_root(scheme: str) -> str:
    """Return a URI that no other test uses."""
    return f"{scheme}://{BUCKET}/{uuid.uuid4().hex}/run"
