"""Compiled programs that outlive the process: a restart at a known size neither traces nor compiles.

JAX's own cache cannot serve a world: its key differs on every process, and only process 0 writes. Nor can it serve
beside this one: a program that came out of it loses functions when it is written down again (seen with jaxlib 0.12.0.1
on CPU). So it stays off, and each compiled program is kept as one file, named by a hash of all that shaped it: this
package's source, the libraries, the parts of the spec that enter the program, the layout, the platform, and the
compiler's flags.

A program is the same for all processes of a world. One that has it, or else process 0 that compiles it, hands it to the
others through the checkpoint folder: hosts that share few cores compile once, and a host that comes back does not
compile at all. In the same place lie the programs of other sizes that `ahead` compiled for worlds to come.

Loading such a file runs what is in it: both folders must be writable by nobody but the job.
"""

import hashlib
import json
import logging
import os
import pickle
import platform
import zlib
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

import trainingjob_api
from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.files import write_whole
from trainingjob_trainer.hlo.order import find_unordered
from trainingjob_trainer.hlo.program import Program
from trainingjob_trainer.world import Peers

LOG = logging.getLogger(__name__)
SHARE_SECONDS = 1800
"""How long a process waits for another one to compile."""
FOLDER = "programs"
"""Where hosts hand programs to each other, below the job's checkpoint folder."""
type Loaded = tuple[bytes, Any | None]
"""A program's file and the program; empty and None: there is none that is of use."""
LIBRARIES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")


class Programs:
    """Compiles programs, or loads them. `folder` keeps them on this host; where it is empty none are kept or shared.

    `root` is the job's checkpoint folder.
    """

    def __init__(self, folder: str, root: Path, config: RunConfig, layout: Layout, peers: Peers) -> None:
        self._folder = Path(folder) if folder else None
        self._shared = root / FOLDER
        self._shaped_by = describe_surroundings(config, layout)
        self._platform = config.accelerator_platform
        self._peers = peers
        self._loader = ThreadPoolExecutor(1, "load-program")
        self._loading: dict[str, Future[Loaded]] = {}
        jax.config.update("jax_enable_compilation_cache", False)  # noqa: FBT003  # JAX's own signature
        compilation_cache.reset_cache()  # it looks whether it is on when a process compiles for the first time, only

    def build(
        self, name: str, function: Any, arguments: tuple[Any, ...], result: Any, *, once: bool = False, **options: Any
    ) -> Any:
        """Return `function` compiled for arguments of these shapes and shardings. All processes build together.

        `result` is a tree of the structure that it returns, `options` are those of `jax.jit`. `once`: it runs once, so
        that on a CPU a quick compilation is worth more than quick code.
        """

        def compile_here() -> Any:
            effort = {"xla_backend_optimization_level": 0} if once and self._platform == "cpu" else None
            compiled = jax.jit(function, **options).lower(*arguments).compile(compiler_options=effort)
            LOG.info("compiled a program name=%s", name)
            return compiled

        if not self._folder:
            return compile_here()
        shared = self.find_shared(name)
        kept = self._folder / shared.name
        trees = _structures(arguments, result)
        content, program = self._loading.pop(name).result() if name in self._loading else self._load(name, *trees)
        told = self._peers.exchange(f"program/{name}", json.dumps([shared.name, program is not None]), SHARE_SECONDS)
        everyone: list[tuple[str, bool]] = [json.loads(text) for text in told]
        if all(has for _, has in everyone):
            LOG.info("loaded a compiled program name=%s", name)
            return program
        giver = next((process for process, (_, has) in enumerate(everyone) if has), 0)
        is_handed = self._peers.process == giver and self._peers.num_processes > 1
        if self._peers.process == giver and program is None:
            program = compile_here()
            content = self._serialize(name, program)
            _write(kept, content)
        if is_handed:
            _write(shared, content)
        self._peers.wait(f"program/{name}/given", SHARE_SECONDS)
        if program is None and everyone[giver][0] == shared.name:
            content = _read(shared)
            program = _load(content, *trees)
            _write(kept, content)
        self._peers.wait(f"program/{name}/taken", SHARE_SECONDS)
        if is_handed:
            shared.unlink(missing_ok=True)
        # Another kind of processor than the giver's, or a platform whose programs cannot be written down.
        return compile_here() if program is None else program

    def _serialize(self, name: str, compiled: Any) -> bytes:
        """Return a program as bytes; empty: this platform cannot, or what is loaded would not be the same program."""
        if self._platform == "cpu" and any(find_unordered(Program(compiled.as_text()))):
            LOG.warning("cannot keep a compiled program, its data leave the order of collectives open name=%s", name)
            return b""
        try:
            return zlib.compress(pickle.dumps(serialize_executable.serialize(compiled)[0]), level=1)
        except Exception as error:  # noqa: BLE001  # training goes on without
            LOG.warning("cannot write a compiled program down error=%s", error)
            return b""

    def begin_loading(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Begin to load a program, if it is there, beside whatever comes before it is built. Nobody waits for that."""
        if self._folder:
            self._loading[name] = self._loader.submit(self._load, name, *_structures(arguments, result))

    def _load(self, name: str, arguments: Any, result: Any) -> Loaded:
        """Return a program as this host keeps it, or as another one handed it over; then it is kept here too."""
        assert self._folder is not None  # noqa: S101  # nothing is loaded without one
        shared = self.find_shared(name)
        kept = self._folder / shared.name
        content = _read(kept)
        program = _load(content, arguments, result)
        if program is None and (program := _load(content := _read(shared), arguments, result)) is not None:
            _write(kept, content)
        return content, program

    def find_shared(self, name: str) -> Path:
        """Return the file in which hosts hand a program to each other, whether it is there or not."""
        key = hashlib.sha256(json.dumps([name, self._shaped_by], sort_keys=True).encode()).hexdigest()[:32]
        return self._shared / f"{name}-{key}.program"

    def is_there(self, name: str) -> bool:
        """Return whether a program need not be compiled: it lies on this host, or where every host finds it."""
        shared = self.find_shared(name)
        return self._folder is not None and (shared.exists() or (self._folder / shared.name).exists())

    def share(self, name: str) -> bool:
        """See to it that a program lies where every host finds it; return whether it does."""
        shared = self.find_shared(name)
        if self._folder and not shared.exists():
            _write(shared, _read(self._folder / shared.name))
        return shared.exists()


def describe_surroundings(config: RunConfig, layout: Layout) -> dict[str, Any]:
    """Return all that decides what a program compiles to."""
    spec = config.spec
    sections = (
        spec.parallelism,
        spec.model,
        spec.training.model_copy(update={"steps": 1}),  # a program is told how many, and serves on after an edit
        spec.optimizer,
        spec.schedule,
        spec.precision,
        spec.memory,
        spec.protection.spikes,
    )
    return {
        "source": _hash_source(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "spec": [section.model_dump() if section else None for section in sections],
        "layout": layout.model_dump(),
        "platform": config.accelerator_platform,
        "machine": _describe_cpu() if config.accelerator_platform == "cpu" else platform.machine(),
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        "precision": str(jax.config.jax_default_matmul_precision),
    }


def keep_only(root: Path, wanted: Collection[Path]) -> None:
    """Delete all other programs that lie below a checkpoint folder: those of an edited spec or of another release."""
    for path in (root / FOLDER).glob("*"):
        if path not in wanted:
            path.unlink(missing_ok=True)


def _hash_source() -> str:
    """Return a hash of the modules that programs are made by: this package's, and the tables that it reads."""
    digest = hashlib.sha256()
    for path in sorted((*Path(__file__).parent.glob("*.py"), *Path(trainingjob_api.__file__).parent.glob("*.py"))):
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


def _read(path: Path) -> bytes:
    """Return a kept program; empty: it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        LOG.warning("cannot read a compiled program path=%s error=%s", path, error)
        return b""


def _structures(arguments: tuple[Any, ...], result: Any) -> tuple[Any, Any]:
    """Return the structures of what a program takes and of what it returns, as they are kept apart from it."""
    return jax.tree.structure((arguments, {})), jax.tree.structure(result)


def _load(content: bytes, arguments: Any, result: Any) -> Any | None:  # None: there is none, or it is of no use
    if not content:
        return None
    try:
        serialized = pickle.loads(zlib.decompress(content))  # noqa: S301  # the job's own folders
        return serialize_executable.deserialize_and_load(serialized, arguments, result)
    except Exception as error:  # noqa: BLE001  # whatever is wrong with a kept program, compiling is the way out
        LOG.warning("cannot load a compiled program, compiling it error=%s", error)
        return None


def _write(path: Path, content: bytes) -> None:
    if not content:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:  # training goes on without
        LOG.warning("cannot keep a compiled program path=%s error=%s", path, error)
