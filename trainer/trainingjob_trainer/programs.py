"""Compiled programs that outlive the process: a restart at a known size neither traces nor compiles.

JAX's own cache cannot serve a world: its key differs on every process, and only process 0 writes. Nor can it serve
beside this one: a program that came out of it loses functions when it is written down again (seen with jaxlib 0.12.0.1
on CPU). So it stays off, and each compiled program is kept as one file, named by a hash of all that shaped it (see
`program_key`).

A program is the same for all processes of a world. One that has it, or else process 0 that compiles it, hands it to the
others through the checkpoint folder: hosts that share few cores compile once, and a host that comes back does not
compile at all. In the same place lie the programs of other sizes that `ahead` compiled for worlds to come.

Loading such a file runs what is in it. So each has a code that only this job can make, which is compared first (see
`program_files`). Without the job's secret no program is kept or shared.
"""

import json
import logging
import re
import zlib
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.hlo.order import find_unordered
from trainingjob_trainer.hlo.program import Program
from trainingjob_trainer.program_files import SUFFIX, name_file, read_program, write_program
from trainingjob_trainer.program_key import describe_surroundings
from trainingjob_trainer.world import Peers

LOG = logging.getLogger(__name__)
SHARE_SECONDS = 1800
"""How long a process waits for another one to compile."""
FOLDER = "programs"
"""Where hosts hand programs to each other, below the job's checkpoint folder."""
OWN = re.compile(rf"\.?[a-z]+-[0-9a-f]{{32}}{re.escape(SUFFIX)}(\..+)?")
"""The names of files there: programs, and what a process that was killed has left of one."""
type Loaded = tuple[bytes, Any | None]
"""A program as bytes and the program; empty and None: there is none that is of use."""


class Programs:
    """Compiles programs, or loads them. `folder` keeps them on this host, `secret` proves that they are the job's.

    Where one of both is empty none are kept or shared. `root` is the job's checkpoint folder.
    """

    def __init__(
        self, folder: str, root: Path, config: RunConfig, layout: Layout, peers: Peers, secret: str = ""
    ) -> None:
        self._folder = Path(folder) if folder and secret else None
        self._secret = secret
        self._shared = root / FOLDER
        if folder and not secret:
            LOG.warning("no compiled program is kept: the operator gave no secret to prove them with")
        self._shaped_by = json.dumps(describe_surroundings(config, layout), sort_keys=True) if self._folder else ""
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
            self._write(kept, content)
        if is_handed:
            self._write(shared, content)
        self._peers.wait(f"program/{name}/given", SHARE_SECONDS)
        if program is None and everyone[giver][0] == shared.name:
            content = self._read(shared)
            program = _load(content, *trees)
            self._write(kept, content)
        self._peers.wait(f"program/{name}/taken", SHARE_SECONDS)
        if is_handed:
            with suppress(OSError):  # somebody else has put a folder there
                shared.unlink(missing_ok=True)
        # Another kind of processor than the giver's, or a platform whose programs cannot be written down.
        return compile_here() if program is None else program

    def _serialize(self, name: str, compiled: Any) -> bytes:
        """Return a program as bytes; empty: this platform cannot, or what is loaded would not be the same program."""
        if self._platform == "cpu" and any(find_unordered(Program(compiled.as_text()))):
            LOG.warning("cannot keep a compiled program, its data leave the order of collectives open name=%s", name)
            return b""
        try:
            return zlib.compress(serialize_executable.serialize(compiled)[0], level=1)
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
        content = self._read(kept)
        program = _load(content, arguments, result)
        if program is None and (program := _load(content := self._read(shared), arguments, result)) is not None:
            self._write(kept, content)
        return content, program

    def find_shared(self, name: str) -> Path:
        """Return the file in which hosts hand a program to each other, whether it is there or not."""
        return self._shared / name_file(self._secret, name, self._shaped_by)

    def is_there(self, name: str) -> bool:
        """Return whether a program need not be compiled: it lies on this host, or where every host finds it."""
        shared = self.find_shared(name)
        return self._folder is not None and (shared.exists() or (self._folder / shared.name).exists())

    def share(self, name: str) -> bool:
        """See to it that a program lies where every host finds it; return whether it does."""
        shared = self.find_shared(name)
        if not self._folder:
            return False
        if self._read(shared):
            return True
        self._write(shared, self._read(self._folder / shared.name))
        return bool(self._read(shared))

    def _read(self, path: Path) -> bytes:
        return read_program(path, self._secret)

    def _write(self, path: Path, content: bytes) -> None:
        write_program(path, content, self._secret)


def keep_only(root: Path, wanted: Collection[Path]) -> None:
    """Delete all other programs that lie below a checkpoint folder: those of an edited spec or of another release."""
    for path in (root / FOLDER).glob("*"):
        if path not in wanted and OWN.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            path.unlink(missing_ok=True)


def _structures(arguments: tuple[Any, ...], result: Any) -> tuple[Any, Any]:
    """Return the structures of what a program takes and of what it returns, as they are kept apart from it."""
    return jax.tree.structure((arguments, {})), jax.tree.structure(result)


def _load(content: bytes, arguments: Any, result: Any) -> Any | None:  # None: there is none, or it is of no use
    if not content:
        return None
    try:
        return serialize_executable.deserialize_and_load(zlib.decompress(content), arguments, result)
    except Exception as error:  # noqa: BLE001  # whatever is wrong with a kept program, compiling is the way out
        LOG.warning("cannot load a compiled program, compiling it error=%s", error)
        return None
