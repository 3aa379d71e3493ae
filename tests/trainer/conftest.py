"""What the trainer's tests share: eight devices, a tiny text, trainer processes, compiled programs."""

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.support.trainer.crew import Crew
from tests.support.trainer.object_servers import ObjectServers
from tests.support.trainer.shelf import Shelf
from tests.support.trainer.stores import Stores
from trainingjob_agent.world_environment import CPU_COLLECTIVE_FLAGS

COMPILED = Path(__file__).parents[2] / "build" / "compiled-by-tests"
MAX_MAPPINGS = 30_000
"""Memory mappings of a process, of which Linux allows 65,530: XLA crashes when it loads a program beyond them."""

# Tests compile much and compute little, perhaps on a busy machine. Workers and trainer processes inherit the flags.
# Each flag stands there once: it is part of the keys of compiled programs.
for flag in ("--xla_backend_optimization_level=0", *CPU_COLLECTIVE_FLAGS):
    if flag not in (given := os.environ.get("XLA_FLAGS", "").split()):
        os.environ["XLA_FLAGS"] = " ".join([*given, flag])
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
logging.getLogger("jax").setLevel(logging.WARNING)  # as in a trainer
# What was compiled by another test, or by a run before, is not compiled again. Trainer processes know nothing of it.
jax.config.update("jax_compilation_cache_dir", str(COMPILED))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def compiled_before() -> None:
    """Let a test use the compiled programs of earlier tests, until it creates `CompileCache`, which disables them."""
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True, scope="module")
def bounded_mappings() -> Iterator[None]:
    """Unload all compiled programs after a module that leaves too many. The cache on disk loads them again."""
    yield
    if len(Path("/proc/self/maps").read_bytes().splitlines()) > MAX_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path)
    yield shelf
    shelf.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path)
    yield stores
    stores.close()


@pytest.fixture(scope="session")
def object_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServers]:
    """Return the object stores of this process of the run, which start with their first use."""
    servers = ObjectServers(tmp_path_factory.mktemp("object-servers"))
    yield servers
    servers.close()


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder for compiled programs that all tests of a run share: the tiny model compiles once a layout."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "programs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a folder with a little text."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        words = " ".join(f"word{(number * 37 + place * 11) % 101}" for place in range(120))
        (folder / f"part-{number}.txt").write_text(words)
    return folder


@pytest.fixture
def thawed() -> Iterator[None]:
    """Let the garbage collector scan all objects again after the test."""
    yield
    gc.unfreeze()


@pytest.fixture
def for_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Pallas compile kernels for a TPU although the devices of the mesh are CPUs."""
    monkeypatch.setattr("jax._src.tpu_info.get_device_kind", lambda: "TPU v5 lite")
    monkeypatch.setattr("jax._src.tpu_info.get_num_device_cores", lambda: 1)
