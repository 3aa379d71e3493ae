"""Programs for later worlds: copied and compiled ahead of time while a world trains, so that the next world loads them.

One process of the world runs it. The programs lie beside the checkpoints, where every host finds them, also after this
process is gone. The programs of the world itself are copied there, for the case that all hosts are replaced.

On CPUs, a separate process also compiles those of the neighbouring sizes. It gets only CPU time that no other process
wants, and only free memory. It belongs to the trainer's process group, so that it is killed together with the trainer.
On other platforms a program is compiled on its own device, which trains.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from trainingjob_agent.trainer_protocol import EVENTS_FD_VARIABLE, StartWorld
from trainingjob_api.spec.runtime import AOT_MEMORY_BYTES
from trainingjob_api.world import Layout
from trainingjob_trainer.aot.compile_request import CompileRequest, program_names
from trainingjob_trainer.context import train_program_names
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.available_memory import available_memory
from trainingjob_trainer.runtime.compile_cache import CompileCache, delete_other_programs
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.snapshotter import Snapshots

LOG = logging.getLogger(__name__)
COMPILER = (sys.executable, "-P", "-m", "trainingjob_trainer.aot")
WARMUP_STEPS = 20
"""Steps that a world trains before the compilation starts: before, the world may be about to fail or to grow."""
POLL_SECONDS = 0.5
RESERVED_BYTES = 256 << 20
"""Memory that is left to other processes."""
MIN_COMPILE_BYTES = AOT_MEMORY_BYTES - RESERVED_BYTES
"""Minimum memory with which a compilation is worth starting."""
JOIN_SECONDS = 5.0
LOWEST_NICE = 19
MAX_OOM_SCORE = "1000"
MAX_LOGGED_CHARACTERS = 300


class NeighborCompiler:
    """Copies and compiles programs while the context lasts, once the world has trained some steps after `restored`."""

    def __init__(
        self,
        start: StartWorld,
        events: AgentEvents,
        snapshots: Snapshots,
        *,
        restored: int,
        compiler: Sequence[str] = COMPILER,
    ) -> None:
        self._start = start
        self._events = events
        self._snapshots = snapshots
        self._settled = restored + WARMUP_STEPS
        self._compiler = compiler
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        start = self._start
        keeps = start.compile_cache and start.program_secret
        if start.process == 0 and keeps:
            self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._process:
            self._process.kill()
        if self._thread:
            self._thread.join(JOIN_SECONDS)  # only hanging storage takes longer

    def _run(self) -> None:
        while (self._events.step or 0) < self._settled:
            if self._stop.wait(POLL_SECONDS):
                return
        try:
            self._compile_missing()
        except OSError as error:
            LOG.warning("no programs are kept for other worlds error=%s", error)

    def _compile_missing(self) -> None:
        config = self._start.config
        root = config.spec.checkpoint.uri
        sizes = {layout.num_slices: self._programs(root, layout) for layout in config.layouts}
        names = {layout.num_slices: program_names(config.spec, layout) for layout in config.layouts}
        delete_other_programs(
            root, {programs.file_name(name) for size, programs in sizes.items() for name in names[size]}
        )
        own = len(self._start.world.slices)
        for size in (own, *neighbor_sizes(own, tuple(sizes))):
            missing = tuple(name for name in names[size] if not sizes[size].copy_to_shared(name))
            if size == own:  # it has the others already, or they cannot be kept
                missing = tuple(name for name in missing if name in self._later_programs())
            if missing and config.accelerator_platform == "cpu" and not self._stop.is_set():
                self._compile(size, missing)

    def _later_programs(self) -> set[str]:
        """Return the programs of batch sizes that the job has not reached yet."""
        spec, step = self._start.config.spec, self._events.step or 0
        later = {size for first, size in spec.training.batch_sizes if first > step}
        return {name for (size, _), name in train_program_names(spec).items() if size in later}

    def _programs(self, root: str, layout: Layout) -> CompileCache:
        start = self._start
        return CompileCache(start.compile_cache, root, start.config, layout, ProcessGroup(0, 1), start.program_secret)

    def _compile(self, num_slices: int, names: tuple[str, ...]) -> None:
        memory_bytes = available_memory() - self._snapshots.unallocated_bytes - RESERVED_BYTES
        if memory_bytes < MIN_COMPILE_BYTES:
            LOG.warning(
                "no memory to compile ahead slices=%d free=%d needed=%d; spec.runtime.resources.memory bounds it",
                num_slices,
                max(memory_bytes, 0),
                MIN_COMPILE_BYTES,
            )
            return
        request = CompileRequest(
            config=self._start.config,
            num_slices=num_slices,
            names=names,
            memory_bytes=memory_bytes,
            program_secret=self._start.program_secret,
        )
        start = time.monotonic()
        code, last_line = self._run_compiler(request)
        seconds = time.monotonic() - start
        if code == 0:
            LOG.info("compiled ahead slices=%d seconds=%.1f", num_slices, seconds)
        elif not self._stop.is_set():
            LOG.warning(
                "cannot compile ahead slices=%d code=%d output=%s", num_slices, code, last_line[-MAX_LOGGED_CHARACTERS:]
            )

    def _run_compiler(self, request: CompileRequest) -> tuple[int, str]:
        """Return the exit code of the compiling process, and the last line of its output."""
        environment = {name: value for name, value in os.environ.items() if name != EVENTS_FD_VARIABLE}
        with subprocess.Popen(
            self._compiler,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        ) as process:
            assert process.stdin is not None  # noqa: S101  # a pipe is requested above
            assert process.stdout is not None  # noqa: S101  # a pipe is requested above
            self._process = process
            if self._stop.is_set():
                process.kill()
            lower_priority(process.pid)
            with suppress(BrokenPipeError):  # it has exited; its output says why
                process.stdin.write(request.model_dump_json(by_alias=True).encode() + b"\n")
                process.stdin.flush()
                LOG.info("compiling ahead slices=%d names=%s", request.num_slices, ",".join(request.names))
            lines = process.stdout.read().decode(errors="replace").strip().splitlines()
        return process.returncode, lines[-1] if lines else ""


def neighbor_sizes(size: int, sizes: Sequence[int]) -> list[int]:
    """Return the next smaller and then the next larger size: a loss comes without notice, a return with it."""
    smaller, larger = [other for other in sizes if other < size], [other for other in sizes if other > size]
    return [*([max(smaller)] if smaller else []), *([min(larger)] if larger else [])]


def lower_priority(pid: int) -> None:
    """Give a process only CPU time that is left over, and make it the first that the kernel kills for memory."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, LOWEST_NICE)
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(MAX_OOM_SCORE)
