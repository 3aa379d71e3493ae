"""Compiled programs that outlive the process: a restart at a known size neither traces nor compiles.

JAX's own cache cannot serve a world: its key differs on every process, and only process 0 writes. So each compiled
program is kept as one file, named by a hash of all that shaped it: this package's source, the libraries, the parts of
the spec that enter the program, the layout, the platform, and the compiler's flags.

Loading such a file runs what is in it: the folder must be writable by nobody but the job.
"""

import hashlib
import json
import logging
import os
import pickle
import platform
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.files import write_whole

LOG = logging.getLogger(__name__)
LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")


class Programs:
    """Compiles programs, or loads them from a folder. `folder` is empty where none are kept."""

    def __init__(self, folder: str, config: RunConfig, layout: Layout) -> None:
        self._folder = Path(folder) if folder else None
        self._shaped_by = describe_surroundings(config, layout)
        if folder:
            # The rest, such as a transfer's small programs, goes through JAX's own cache.
            jax.config.update("jax_compilation_cache_dir", folder)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def build(self, name: str, function: Any, arguments: Sequence[Any], result: Any, **options: Any) -> Any:
        """Return `function` compiled for arguments of these shapes and shardings.

        `result` is a tree of the structure that it returns; `options` are those of `jax.jit`.
        """
        path = self._path(name)
        if path and (loaded := _load(path, tuple(arguments), result)):
            LOG.info("loaded a compiled program name=%s", name)
            return loaded
        compiled = jax.jit(function, **options).lower(*arguments).compile()
        LOG.info("compiled a program name=%s", name)
        if path:
            _keep(path, compiled)
        return compiled

    def _path(self, name: str) -> Path | None:  # None: programs are not kept
        if not self._folder:
            return None
        key = hashlib.sha256(json.dumps([name, self._shaped_by], sort_keys=True).encode()).hexdigest()
        return self._folder / f"{name}-{key[:32]}.program"


def describe_surroundings(config: RunConfig, layout: Layout) -> dict[str, Any]:
    """Return all that decides what a program compiles to."""
    spec = config.spec
    sections = (spec.model, spec.training, spec.optimizer, spec.schedule, spec.precision, spec.memory)
    return {
        "source": _hash_source(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "spec": [section.model_dump() for section in sections],
        "layout": layout.model_dump(),
        "platform": config.accelerator_platform,
        "machine": _describe_cpu() if config.accelerator_platform == "cpu" else platform.machine(),
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        "precision": str(jax.config.jax_default_matmul_precision),
    }


def _hash_source() -> str:
    """Return a hash of this package's modules."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def _describe_cpu() -> str:
    """Return the processor's instruction sets: programs for a CPU run on no lesser one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _load(path: Path, arguments: tuple[Any, ...], result: Any) -> Any | None:  # None: not there, or of no use
    try:
        serialized = pickle.loads(zlib.decompress(path.read_bytes()))  # noqa: S301  # the job's own folder
        return serialize_executable.deserialize_and_load(
            serialized, jax.tree.structure((arguments, {})), jax.tree.structure(result)
        )
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001  # whatever is wrong with a kept program, compiling is the way out
        LOG.warning("cannot load a compiled program, compiling it path=%s error=%s", path, error)
        return None


def _keep(path: Path, compiled: Any) -> None:
    try:
        serialized, _, _ = serialize_executable.serialize(compiled)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, zlib.compress(pickle.dumps(serialized), level=1))
    except Exception as error:  # noqa: BLE001  # training goes on without
        LOG.warning("cannot keep a compiled program path=%s error=%s", path, error)
