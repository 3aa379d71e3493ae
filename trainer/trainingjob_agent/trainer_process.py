"""A trainer process and its pipes: events and log lines are read, one start and later commands are written.

The child leads a process group, so killing the group ends every process that it started. Its exit is reported once,
after all its output was read, and with its own failure report if it sent one.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import IO, BinaryIO

from trainingjob_agent.log_tail import LogTail
from trainingjob_agent.processes import (
    STOPPED,
    Vitals,
    compare_samples,
    count_oom_kills,
    read_io_mebibytes,
    read_vitals,
    sample_process,
)
from trainingjob_agent.stacks import find_stacks
from trainingjob_agent.state import ChildDiagnosed, ChildExited, EventReceived
from trainingjob_agent.trainer_protocol import (
    EVENTS_FD_VARIABLE,
    STANDBY_TITLE,
    AgentEvent,
    Command,
    StartWorld,
    TraceOrder,
)
from trainingjob_agent.world_environment import without_world_variables
from trainingjob_api.protocol import Failure, ProcessState

LOG = logging.getLogger(__name__)
FAILURE_EXIT_SECONDS = 2.0
"""Seconds that a child may take to exit by itself after it reported a failure."""
DRAIN_SECONDS = 2.0
"""Seconds for which pipes are read after the exit: only a process that left the group can keep them open."""
CPU_SAMPLE_SECONDS = 0.4
"""Seconds over which CPU use is measured: long enough to distinguish a computing process from an idle one."""
MAX_STACKS_SECONDS = 1.5
"""Maximum seconds to wait for the thread stacks; a busy machine needs longest."""
STACKS_POLL_SECONDS = 0.1
MAX_EVENT_BYTES = 1 << 20
CHUNK = 1 << 16


class Child:
    """One trainer process, from its start as a standby to its exit.

    `on_message` receives every event and, last, the exit. `log` receives the output, each line prefixed with the
    child's name.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        on_message: Callable[[EventReceived | ChildExited], None],
        log: BinaryIO,
    ) -> None:
        self._number = number
        self._on_message = on_message
        self._log = log
        self._name = STANDBY_TITLE
        self._tail = LogTail()
        self._failure: Failure | None = None
        self._stack_log: bytearray | None = None  # None: no thread stacks are awaited
        self._diagnosing = asyncio.Lock()
        self._oom_kills = count_oom_kills()
        self._stdin: asyncio.WriteTransport | None = None
        events, events_for_child = os.pipe()
        self._events = os.fdopen(events, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(events_for_child,),
                start_new_session=True,
                bufsize=0,
                env={
                    **without_world_variables(os.environ),
                    **self._variables(),
                    EVENTS_FD_VARIABLE: str(events_for_child),
                    "PYTHONUNBUFFERED": "1",
                },
            )
        except OSError:
            self._events.close()
            raise
        finally:
            os.close(events_for_child)

    @property
    def pid(self) -> int:
        """Return its process id, which is also its process group id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether it is not reaped yet."""
        return self._process.returncode is None

    @property
    def io_mebibytes(self) -> int | None:  # None: it has exited, or the kernel does not count I/O
        """Return how many MiB it has read and written."""
        return read_io_mebibytes(self.pid) if self.is_alive else None

    @property
    def vitals(self) -> Vitals | None:  # None: it has exited
        """Return whether it is stopped, and its CPU time."""
        return read_vitals(self.pid) if self.is_alive else None

    async def forward_output(self) -> None:
        """Forward the output of the child until it has exited and is reaped. Cancellation kills it."""
        loop = asyncio.get_running_loop()
        assert self._process.stdin is not None  # noqa: S101  # PIPE was requested above
        assert self._process.stdout is not None  # noqa: S101  # PIPE was requested above
        with contextlib.ExitStack() as ending:
            ending.callback(self.close)
            stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
            ending.callback(_abort, stdin)
            self._stdin = stdin
            events, events_pipe = await _open_reader(self._events)
            ending.callback(events_pipe.close)
            output, output_pipe = await _open_reader(self._process.stdout)
            ending.callback(output_pipe.close)
            readers = {asyncio.create_task(self._read_events(events)), asyncio.create_task(self._read_log(output))}
            for reader in readers:
                ending.callback(reader.cancel)
            await self._wait_for_exit()
            drained, _ = await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            for reader in drained:
                reader.result()
        self._on_message(self._make_exit_message())

    def start(self, start: StartWorld) -> None:
        """Start the child in a world."""
        self._name = start.title
        self._write(start)

    def request_leave(self, *, moves: bool = False) -> None:
        """Request that it saves and leaves at the next step boundary; `moves`: a state in memory suffices."""
        self._write(Command(move=True) if moves else Command(leave=True))

    def inject_nan(self) -> None:
        """Make the gradients of its world's next step non-finite."""
        self._write(Command(poison=True))

    def trace(self, name: str, steps: int) -> None:
        """Trace its next steps."""
        self._write(Command(trace=TraceOrder(name=name, steps=steps)))

    def send_live_slices(self, slices: tuple[int, ...]) -> None:
        """Send the slices whose replicas are in a round."""
        self._write(Command(live_slices=slices))

    async def collect_diagnostics(self) -> ChildDiagnosed | None:  # None: it has exited
        """Collect diagnostics: measure its CPU use and make it dump its thread stacks. The child continues.

        Requests of the operator and of a user run one after the other: each has a complete dump.
        """
        async with self._diagnosing:
            try:
                return await self._diagnose()
            finally:
                self._stack_log = None

    async def _diagnose(self) -> ChildDiagnosed | None:  # None: it has exited
        loop = asyncio.get_running_loop()
        start, before = loop.time(), sample_process(self.pid)
        if self._process.returncode is not None or before is None:
            return None
        self._stack_log = stack_log = bytearray()
        if before.state not in STOPPED:  # a stopped process does not handle signals
            self._request_stacks()
        await asyncio.sleep(CPU_SAMPLE_SECONDS)
        seconds, after = loop.time() - start, sample_process(self.pid)
        if self._process.returncode is not None or after is None:
            return None
        state, cores = compare_samples(before, after, seconds)
        stacks = "" if state is ProcessState.STOPPED else await _wait_for_stacks(stack_log, start + MAX_STACKS_SECONDS)
        return ChildDiagnosed(self._number, state, cores, stacks)

    def pause(self) -> None:
        """Stop it until `resume` or `kill`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it and its process group at once."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it and release its resources, also if `forward_output` never ran."""
        self._reap()
        for pipe in (self._process.stdin, self._process.stdout, self._events):
            if pipe is not None:
                pipe.close()

    def _variables(self) -> dict[str, str]:
        """Return further variables of the process."""
        return {}

    def _translate(self, event: AgentEvent) -> AgentEvent:
        """Return an event as the agent's rules need it."""
        return event

    def _read_lines(self, lines: list[bytes]) -> None:
        """Use the lines of its log."""

    def _request_stacks(self) -> None:
        """Make it dump its thread stacks into its log."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _write(self, message: StartWorld | Command) -> None:
        if self._stdin is not None:  # None: it exited before its pipe was connected
            self._stdin.write(message.model_dump_json(by_alias=True).encode() + b"\n")

    async def _wait_for_exit(self) -> None:
        """Wait for the exit, then reap it."""
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        pidfd = os.pidfd_open(self.pid)
        loop.add_reader(pidfd, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        self._reap()

    def _reap(self) -> None:
        """Kill the rest of the group, then reap: until then no other process can get its process id."""
        self.kill()
        self._process.wait()

    async def _read_events(self, events: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await events.readline()
                if not line.endswith(b"\n"):
                    return
                event = AgentEvent.model_validate_json(line)
            except ValueError as error:
                LOG.warning("ignored a malformed event child=%d error=%s", self._number, error)
                continue
            if event.failure is not None:
                self._failure = event.failure
                asyncio.get_running_loop().call_later(FAILURE_EXIT_SECONDS, self.kill)
            self._on_message(EventReceived(self._number, self._translate(event)))

    async def _read_log(self, output: asyncio.StreamReader) -> None:
        line = b""
        while chunk := await output.read(CHUNK):
            self._tail.write(chunk)
            if self._stack_log is not None:
                self._stack_log += chunk
            *complete, line = (line + chunk).split(b"\n")
            if len(line) > CHUNK:
                complete, line = [*complete, line], b""
            self._print(complete)
        if line:
            self._print([line])

    def _print(self, lines: list[bytes]) -> None:
        if lines:
            self._read_lines(lines)
            prefix = f"[{self._name}] ".encode()
            with contextlib.suppress(OSError):  # a blocked log must not stop the training
                self._log.write(b"".join(prefix + line + b"\n" for line in lines))
                self._log.flush()

    def _make_exit_message(self) -> ChildExited:
        code = self._process.returncode
        return ChildExited(
            self._number,
            code=code if code >= 0 else None,
            signal=_name_signal(-code) if code < 0 else "",
            out_of_memory=count_oom_kills() > self._oom_kills,
            log=self._tail.text(),
            failure=self._failure,
        )


async def _wait_for_stacks(stack_log: bytearray, until: float) -> str:
    """Return the stacks in a log that grows: once the dump has begun and no longer grows, or at the deadline."""
    size = -1
    while asyncio.get_running_loop().time() < until and (not stack_log or len(stack_log) > size):
        size = len(stack_log)
        await asyncio.sleep(STACKS_POLL_SECONDS)
    return find_stacks(stack_log.decode(errors="replace"))


async def _open_reader(pipe: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=MAX_EVENT_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport


def _abort(pipe: asyncio.WriteTransport) -> None:
    if not pipe.is_closing():  # the transport closes by itself when the reader is gone
        pipe.abort()


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
