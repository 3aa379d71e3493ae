"""A trainer process as its agent sees it: events and log lines come out, one world and one request to leave go in.

The child leads a process group, so that ending it ends all that it started. Its end is told once, after everything it
wrote before was read, and with its own words where it had any.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import IO, BinaryIO

from trainingjob_api.protocol import Failure, ProcessState
from trainingjob_trainer.agent.killings import count_oom_kills
from trainingjob_trainer.agent.processes import STOPPED, Vitals, compare, look_at, read_moved, read_vitals
from trainingjob_trainer.agent.stacks import find_stacks
from trainingjob_trainer.agent.state import Ended, Examined, Spoke
from trainingjob_trainer.agent.tail import Tail
from trainingjob_trainer.surroundings import forget_worlds
from trainingjob_trainer.wire import EVENTS_FD_VARIABLE, STANDBY, Command, Event, Start

LOG = logging.getLogger(__name__)
LAST_WORDS_SECONDS = 2.0
"""How long a child that told its failure may take to end by itself."""
DRAIN_SECONDS = 2.0
"""How long pipes are read after the end: only a process that left the group can still hold them."""
EXAMINATION_SECONDS = 0.4
"""How long a child is looked at: long enough to tell a process that computes from one that does not."""
LONGEST_EXAMINATION_SECONDS = 1.5
"""How long its stacks may take to come; on a busy machine they take longer than anywhere else."""
STACKS_POLL_SECONDS = 0.1
LONGEST_EVENT = 1 << 20
CHUNK = 1 << 16


class Child:
    """One trainer process, from its start as a standby to its end.

    `tell` gets every event and, last, the end. `log` gets its output, each line behind the child's name.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self, number: int, command: Sequence[str], tell: Callable[[Spoke | Ended], None], log: BinaryIO
    ) -> None:
        self._number = number
        self._tell = tell
        self._log = log
        self._name = STANDBY
        self._tail = Tail()
        self._failure: Failure | None = None
        self._overheard: bytearray | None = None  # None: nobody waits for stacks
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
                env={**forget_worlds(os.environ), EVENTS_FD_VARIABLE: str(events_for_child), "PYTHONUNBUFFERED": "1"},
            )
        except OSError:
            self._events.close()
            raise
        finally:
            os.close(events_for_child)

    @property
    def pid(self) -> int:
        """Return its process id, which is its group's too."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Return whether it was not reaped yet."""
        return self._process.returncode is None

    @property
    def moved(self) -> int | None:  # None: it has ended, or its kernel does not tell
        """Return how many MiB it has read and written."""
        return read_moved(self.pid) if self.lives else None

    @property
    def vitals(self) -> Vitals | None:  # None: it has ended
        """Return whether it is stopped, and the CPU time that it has used."""
        return read_vitals(self.pid) if self.lives else None

    async def follow(self) -> None:
        """Pass on what the child writes until it has ended and was reaped. Whoever cancels this ends it."""
        loop = asyncio.get_running_loop()
        assert self._process.stdin is not None  # noqa: S101  # asked for above
        assert self._process.stdout is not None  # noqa: S101  # asked for above
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
            await self._died()
            drained, _ = await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            for reader in drained:
                reader.result()
        self._tell(self._describe_end())

    def start(self, start: Start) -> None:
        """Hand over a world."""
        self._name = start.title
        self._write(start)

    def leave(self, *, moves: bool = False) -> None:
        """Ask it to leave its world at the next step boundary, saved; `moves`: kept in memory is enough."""
        self._write(Command(move=True) if moves else Command(leave=True))

    def poison(self) -> None:
        """Have the gradients of its world's next step not be finite."""
        self._write(Command(poison=True))

    async def examine(self) -> Examined | None:  # None: it has ended
        """Look at it for a moment, and have it write where its threads stand. It goes on as before."""
        loop = asyncio.get_running_loop()
        begun, before = loop.time(), look_at(self.pid)
        if self._process.returncode is not None or before is None:
            return None
        self._overheard = bytearray()
        if before.state not in STOPPED:  # it would not hear
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
        await asyncio.sleep(EXAMINATION_SECONDS)
        seconds, after = loop.time() - begun, look_at(self.pid)
        if self._process.returncode is not None or after is None:
            return None
        state, cores = compare(before, after, seconds)
        stacks = "" if state is ProcessState.STOPPED else await self._overhear(begun + LONGEST_EXAMINATION_SECONDS)
        self._overheard = None
        return Examined(self._number, state, cores, stacks)

    def freeze(self) -> None:
        """Stop it where it is, until it is thawed or ended."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End it and give back all that it took, also where nobody has followed it yet."""
        self._reap()
        for pipe in (self._process.stdin, self._process.stdout, self._events):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _overhear(self, until: float) -> str:
        """Return the stacks in its log: once something has come and no more does, or it is too late for that."""
        heard = self._overheard or bytearray()
        size = -1
        while asyncio.get_running_loop().time() < until and (not heard or len(heard) > size):
            size = len(heard)
            await asyncio.sleep(STACKS_POLL_SECONDS)
        return find_stacks(heard.decode(errors="replace"))

    def _write(self, message: Start | Command) -> None:
        if self._stdin is not None:  # None: it ended before it could be spoken to
            self._stdin.write(message.model_dump_json(by_alias=True).encode() + b"\n")

    async def _died(self) -> None:
        """Wait for the end."""
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
        """End what is left of the group, then reap: until then nobody else can have its number."""
        self.kill()
        self._process.wait()

    async def _read_events(self, events: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await events.readline()
                if not line.endswith(b"\n"):
                    return
                event = Event.model_validate_json(line)
            except ValueError as error:
                LOG.warning("ignored a malformed event child=%d error=%s", self._number, error)
                continue
            if event.failure is not None:
                self._failure = event.failure
                asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self.kill)
            self._tell(Spoke(self._number, event))

    async def _read_log(self, output: asyncio.StreamReader) -> None:
        line = b""
        while chunk := await output.read(CHUNK):
            self._tail.write(chunk)
            if self._overheard is not None:
                self._overheard += chunk
            *whole, line = (line + chunk).split(b"\n")
            if len(line) > CHUNK:
                whole, line = [*whole, line], b""
            self._print(whole)
        if line:
            self._print([line])

    def _print(self, lines: list[bytes]) -> None:
        if lines:
            prefix = f"[{self._name}] ".encode()
            with contextlib.suppress(OSError):  # a log that nobody takes must not stop the training
                self._log.write(b"".join(prefix + line + b"\n" for line in lines))
                self._log.flush()

    def _describe_end(self) -> Ended:
        code = self._process.returncode
        return Ended(
            self._number,
            code=code if code >= 0 else None,
            signal=_name_signal(-code) if code < 0 else "",
            out_of_memory=count_oom_kills() > self._oom_kills,
            log=self._tail.text(),
            failure=self._failure,
        )


async def _open_reader(pipe: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=LONGEST_EVENT)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport


def _abort(pipe: asyncio.WriteTransport) -> None:
    if not pipe.is_closing():  # it closes by itself when the reader is gone
        pipe.abort()


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
