"""Compile cache that outlives the process: a restart at a known size neither traces nor compiles.

JAX's own cache cannot serve a world: its key differs on every process, and only process 0 writes. It also cannot run
beside this cache: a program that was loaded from it loses functions when it is serialized again (seen with jaxlib
0.12.0.1 on CPU). JAX's cache therefore stays off. Each compiled program is one file, named by a hash of everything that
shaped it (see `compile_cache_key`).

All processes of a world use the same program. A process that has it, or else process 0, which compiles it, passes it to
the others through the checkpoint folder. Hosts that share few cores compile once, and a host that returns does not
compile at all. The same folder holds the programs of other sizes that `NeighborCompiler` compiled for later worlds.

Loading such a file executes its content. Each file therefore has an authentication code that only this job can compute,
which is verified first (see `compile_cache_files`). Without the job's secret, no program is kept or shared.
"""

import json
import logging
import re
import zlib
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram
from trainingjob_trainer.runtime.compile_cache_files import (
    PROGRAM_SUFFIX,
    program_file_name,
    read_program,
    write_program,
)
from trainingjob_trainer.runtime.compile_cache_key import compile_cache_key
from trainingjob_trainer.runtime.hlo_dump import HloDump
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.folder_limit import delete_least_recent, mark_used
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
SHARE_SECONDS = 1800
"""Seconds that a process waits for another one to compile."""
SHARED_FOLDER = "programs"
"""Folder through which hosts share programs, below the job's checkpoint folder."""
PROGRAM_FILE_NAME = re.compile(rf"\.?[a-z]+(-[0-9]+)?-[0-9a-f]{{32}}{re.escape(PROGRAM_SUFFIX)}(\..+)?")
"""File names in that folder: programs, and the partial files of a killed process."""
type LoadedProgram = tuple[bytes, Any | None]
"""A program as bytes, and the loaded program. Empty and None: there is no usable program."""


class CompileCache:
    """Compiles programs, or loads them. `folder` keeps them on this host, and `secret` authenticates them as the job's.

    If one of the two is empty, no program is kept or shared. `root` is the job's checkpoint folder. `dump` writes each
    program as HLO.
    """

    def __init__(
        self,
        folder: str,
        root: str,
        config: RunConfig,
        layout: Layout,
        peers: ProcessGroup,
        secret: str = "",
        dump: HloDump | None = None,
    ) -> None:
        self._folder = folder
        self._kept = open_store(folder) if folder and secret else None
        self._secret = secret
        self._shared = open_shared(root)
        if folder and not secret:
            LOG.warning("no compiled program is kept: the operator sent no secret to authenticate it")
        self._key = json.dumps(compile_cache_key(config, layout), sort_keys=True) if self._kept else ""
        self._platform = config.accelerator_platform
        self._peers = peers
        self._dump = dump
        self._loader = ThreadPoolExecutor(1, "load-program")
        self._loading: dict[str, Future[LoadedProgram]] = {}
        jax.config.update("jax_enable_compilation_cache", False)  # noqa: FBT003  # JAX's own signature
        compilation_cache.reset_cache()  # JAX reads the setting at the first compilation of a process only

    def compile_or_load(
        self, name: str, function: Any, arguments: tuple[Any, ...], result: Any, *, once: bool = False, **options: Any
    ) -> Any:
        """Return `function` compiled for arguments of these shapes and shardings. All processes build together.

        `result` is a tree of the structure that it returns, and `options` are passed to `jax.jit`. `once`: the program
        runs once, so that a CPU compiles it with little optimization.
        """
        program = self._build(name, function, arguments, result, once=once, **options)
        if self._dump:
            self._dump.write(name, program)
        return program

    def _build(
        self, name: str, function: Any, arguments: tuple[Any, ...], result: Any, *, once: bool, **options: Any
    ) -> Any:
        def compile_here() -> Any:
            effort = {"xla_backend_optimization_level": 0} if once and self._platform == "cpu" else None
            compiled = jax.jit(function, **options).lower(*arguments).compile(compiler_options=effort)
            LOG.info("compiled a program name=%s", name)
            return compiled

        if not self._kept:
            return compile_here()
        file_name = self.file_name(name)
        trees = _structures(arguments, result)
        content, program = (
            self._loading.pop(name).result() if name in self._loading else self._deserialize(name, *trees)
        )
        texts = self._peers.exchange(f"program/{name}", json.dumps([file_name, program is not None]), SHARE_SECONDS)
        results: list[tuple[str, bool]] = [json.loads(text) for text in texts]
        if all(has for _, has in results):
            LOG.info("loaded a compiled program name=%s", name)
            return program
        sender = next((process for process, (_, has) in enumerate(results) if has), 0)
        is_sending = self._peers.process == sender and self._peers.num_processes > 1
        if self._peers.process == sender and program is None:
            program = compile_here()
            content = self._serialize(name, program)
            self._keep(name, content)
        if is_sending:
            self._write(self._shared, name, content)
        self._peers.barrier(f"program/{name}/given", SHARE_SECONDS)
        if program is None and results[sender][0] == file_name:
            content = self._read(self._shared, name)
            program = _load(content, *trees)
            self._keep(name, content)
        self._peers.barrier(f"program/{name}/taken", SHARE_SECONDS)
        if is_sending:
            with suppress(OSError):  # another process has created a folder at this path
                self._shared.delete(file_name)
        # The sender has another kind of processor, or the platform cannot serialize programs.
        return compile_here() if program is None else program

    def _serialize(self, name: str, compiled: Any) -> bytes:
        """Return a program as bytes; empty: the platform cannot, or loading could reorder its collectives."""
        if self._platform == "cpu" and any(find_unordered_collectives(HloProgram(compiled.as_text()))):
            LOG.warning("cannot keep a compiled program, its data leave the order of collectives open name=%s", name)
            return b""
        try:
            return zlib.compress(serialize_executable.serialize(compiled)[0], level=1)
        except Exception as error:  # noqa: BLE001  # training continues without the file
            LOG.warning("cannot write a compiled program down error=%s", error)
            return b""

    def begin_loading(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Start to load a program in the background, if it is kept; `compile_or_load` takes the result."""
        if self._kept:
            self._loading[name] = self._loader.submit(self._deserialize, name, *_structures(arguments, result))

    def _deserialize(self, name: str, arguments: Any, result: Any) -> LoadedProgram:
        """Return a program from this host's folder, or else from the shared folder, and keep the latter here."""
        assert self._kept is not None  # noqa: S101  # programs are loaded from a folder only
        content = self._read(self._kept, name)
        program = _load(content, arguments, result)
        if program is not None:
            mark_used(self._folder, self.file_name(name))
        else:
            program = _load(content := self._read(self._shared, name), arguments, result)
            if program is not None:
                self._keep(name, content)
        return content, program

    def file_name(self, name: str) -> str:
        """Return the name of a program's file, whether it exists or not."""
        return program_file_name(self._secret, name, self._key)

    def is_cached(self, name: str) -> bool:
        """Return whether a program need not be compiled: this host or the shared folder has it."""
        return self._kept is not None and (self._has(self._shared, name) or self._has(self._kept, name))

    def copy_to_shared(self, name: str) -> bool:
        """Copy a program to the shared folder if it is missing there; return whether it is there."""
        if not self._kept:
            return False
        if self._read(self._shared, name):
            return True
        self._write(self._shared, name, self._read(self._kept, name))
        return bool(self._read(self._shared, name))

    def _has(self, store: Store, name: str) -> bool:
        try:
            store.size(self.file_name(name))
        except (OSError, ValueError):  # what cannot be read is compiled again
            return False
        return True

    def _read(self, store: Store, name: str) -> bytes:
        return read_program(store, self.file_name(name), self._secret)

    def _keep(self, name: str, content: bytes) -> None:
        """Write a program into this host's folder, in place of those that were not used for longest."""
        assert self._kept is not None  # noqa: S101  # programs are kept in a folder only
        delete_least_recent(self._folder, PROGRAM_FILE_NAME, len(content))
        self._write(self._kept, name, content)

    def _write(self, store: Store, name: str, content: bytes) -> None:
        write_program(store, self.file_name(name), content, self._secret)


def open_shared(root: str) -> Store:
    """Return the store through which the hosts of a job share programs, below its checkpoint folder."""
    return open_store(f"{root}/{SHARED_FOLDER}")


def delete_other_programs(root: str, kept_names: Collection[str]) -> None:
    """Delete the programs of another spec or release below a checkpoint folder: all whose file is not in `kept_names`.

    Raises:
        OSError: storage refuses.
    """
    store = open_shared(root)
    for entry in store.list_folder():
        if not entry.is_folder and entry.name not in kept_names and PROGRAM_FILE_NAME.fullmatch(entry.name):
            store.delete(entry.name)


def _structures(arguments: tuple[Any, ...], result: Any) -> tuple[Any, Any]:
    """Return the tree structures of a program's arguments and result, which are not part of its file."""
    return jax.tree.structure((arguments, {})), jax.tree.structure(result)


def _load(content: bytes, arguments: Any, result: Any) -> Any | None:  # None: there is no usable program
    if not content:
        return None
    try:
        return serialize_executable.deserialize_and_load(zlib.decompress(content), arguments, result)
    except Exception as error:  # noqa: BLE001  # a kept program with any defect is compiled again
        LOG.warning("cannot load a compiled program, compiling it error=%s", error)
        return None
