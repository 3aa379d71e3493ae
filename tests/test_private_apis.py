"""Private APIs of dependencies: the list is complete, and each still has the shape that the product relies on.

A failure names the dependency and the file that must follow a new release. docs/decisions/private-apis.md has the
reasons. The guards of JAX and Orbax are in tests/trainer/test_private_apis.py.
"""

import importlib
import inspect
from asyncio.sslproto import SSLProtocol

import kopf
import pytest
from kopf._cogs.aiokits import aiotasks
from kopf._cogs.structs.credentials import Vault
from kopf._core.reactor.inventory import ResourceMemories

from tests.support.private_apis import ROOT, Use, find_uses

SHELL = "operator/trainingjob_operator/shell"
TRAINER = "trainer/trainingjob_trainer"
USES = {
    Use(f"{SHELL}/watcher.py", "kopf._cogs.structs.credentials"),
    Use(f"{SHELL}/watcher.py", "kopf._core.reactor.inventory"),
    Use(f"{SHELL}/logging_setup.py", "kopf._core.reactor.running"),
    Use(f"{SHELL}/logging_setup.py", "kopf._cogs.clients.watching"),
    Use(f"{SHELL}/connections.py", "asyncio.sslproto"),
    Use(f"{TRAINER}/aot/mock_topology.py", "jax._src"),
    Use(f"{TRAINER}/aot/mock_topology.py", "jaxlib"),
    Use(f"{TRAINER}/runtime/entrypoint_module.py", "jax._src"),
    Use(f"{TRAINER}/runtime/process_group.py", "jax._src"),
    Use(f"{TRAINER}/checkpoint/formats/orbax_writer.py", "orbax.checkpoint._src.futures.future"),
    Use(f"{TRAINER}/store/array_paths.py", "orbax.checkpoint._src.path"),
    Use(f"{TRAINER}/store/array_paths.py", "orbax.checkpoint._src.serialization"),
}


def test_every_use_of_a_private_api_is_listed() -> None:
    assert find_uses() == USES


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs/decisions/private-apis.md").read_text()

    assert [use.file for use in USES if use.file.partition("/trainingjob_")[2].partition("/")[2] not in page] == []


def test_kopf_takes_a_vault_and_closes_it() -> None:
    assert "vault" in inspect.signature(kopf.spawn_tasks).parameters
    assert inspect.iscoroutinefunction(Vault().close)


def test_kopf_takes_memories_and_forgets_ephemeral_ones() -> None:
    assert "memories" in inspect.signature(kopf.spawn_tasks).parameters
    assert "ephemeral" in inspect.signature(ResourceMemories.recall).parameters


@pytest.mark.parametrize("name", ["kopf._core.reactor.running", "kopf._cogs.clients.watching"])
def test_kopf_logs_under_the_names_of_these_modules(name: str) -> None:
    assert importlib.import_module(name).logger.name == name


def test_kopf_names_the_tasks_that_start_others() -> None:
    source = inspect.getsource(aiotasks.Scheduler)

    assert 'name=f"spawner of ' in source
    assert 'name=f"cleaner of ' in source


def test_asyncio_reads_tls_into_a_buffer_that_a_subclass_gives() -> None:
    constructor = inspect.getsource(SSLProtocol.__init__)

    assert "self._ssl_buffer = bytearray(self.max_size)" in constructor
    assert "self._ssl_buffer_view = memoryview(self._ssl_buffer)" in constructor
    assert "self._ssl_buffer_view[:nbytes]" in inspect.getsource(SSLProtocol.buffer_updated)
    assert "self._write_backlog = collections.deque()" in constructor
    assert "self._process_outgoing()" in inspect.getsource(SSLProtocol._do_write)  # type: ignore[attr-defined]
