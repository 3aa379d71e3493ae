"""Checks of jobs outside the event loop: processes that can be ended, turns that are fair, time that is bounded.

A check may take a second of CPU, and anybody in the cluster can ask for one. Reviews and the reconciler have one
process each, so neither waits for the other. Who asks for many reviews waits for itself: peers take turns, and the
users of a peer do so among themselves.
"""

import asyncio
import contextlib
import pickle
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.validation.validate import Checked
from trainingjob_operator.shell.admission_review import NotAReviewError, find_user
from trainingjob_operator.shell.check_worker import LENGTH, Request, Result, pack
from trainingjob_operator.shell.examining import Examined
from trainingjob_operator.shell.ports import BusyError

WORKER = (sys.executable, "-P", "-c", "from trainingjob_operator.shell.check_worker import main; main()")
"""Not `-m`: what a main module defines has another name in each process, and cannot cross the pipe."""
REVIEW_CPU_SECONDS = 2.0
"""The costliest legal specs need half a second on a slow machine."""
REVIEW_WAIT_SECONDS = 2.5
"""For a turn. With `REVIEW_SECONDS` less than the API server waits, so that an answer with a reason still arrives."""
REVIEW_SECONDS = 4.0
"""For the turn and the check."""
MAX_REVIEW_SECONDS = 60.0
"""After which the process of a review is ended even where it used little CPU: it is stopped, or starved."""
JOB_CPU_SECONDS = 10.0
JOB_SECONDS = 120.0
MAX_WAITING = 64
"""Requests of one peer that wait for a turn."""


class CheckBusyError(BusyError):
    """The check did not get its turn, or did not end, in time. It may succeed later."""


class CheckTooCostlyError(Exception):
    """The check needs more CPU time than any may use. It fails again as long as the spec stays the same."""


class CheckBrokeError(Exception):
    """The check failed for a reason that is a fault of this program. The text holds the traceback."""


class Turns:
    """A few at a time: peers take turns, and the users of a peer do so among themselves."""

    def __init__(self, max_waiting: int = MAX_WAITING, at_once: int = 1) -> None:
        """Let so many of each peer wait."""
        self._max_waiting = max_waiting
        self._num_free = at_once
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, peer: str = "", user: str = "", seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it; `seconds` bounds the wait.

        Raises:
            CheckBusyError: too many of this peer wait, or the turn did not come in time.
        """
        if self._num_free:
            self._num_free -= 1
        else:
            await self._wait(peer, user, seconds)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, peer: str, user: str, seconds: float | None) -> None:
        users = self._waiting.setdefault(peer, {})
        if sum(map(len, users.values())) >= self._max_waiting:
            raise CheckBusyError(f"{self._max_waiting} requests of {peer} wait already")
        mine = asyncio.get_running_loop().create_future()
        users.setdefault(user, deque()).append(mine)
        try:
            async with asyncio.timeout(seconds):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():  # the turn came in the very moment
                self._pass_on()
            else:
                self._forget(peer, user, mine)
            if isinstance(error, TimeoutError):
                raise CheckBusyError(f"other requests took all of {seconds:g} s") from error
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next user of the next peer."""
        while self._waiting:
            peer, users = next(iter(self._waiting.items()))
            user, waiting = next(iter(users.items()))
            next_one = waiting.popleft()
            del self._waiting[peer], users[user]  # both go to the end of their line
            if waiting:
                users[user] = waiting
            if users:
                self._waiting[peer] = users
            if not next_one.done():
                next_one.set_result(None)
                return
        self._num_free += 1

    def _forget(self, peer: str, user: str, mine: asyncio.Future[None]) -> None:
        users = self._waiting.get(peer, {})
        waiting = users.get(user, deque())
        with contextlib.suppress(ValueError):
            waiting.remove(mine)
        if not waiting:
            users.pop(user, None)
        if not users:
            self._waiting.pop(peer, None)


class Worker:
    """One process that does one task at a time. It starts with the first task, and again after it ended."""

    def __init__(self, hardware: Hardware, command: tuple[str, ...] = WORKER) -> None:
        """Check against a hardware table."""
        self._hardware = hardware
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """Return the process; start it where there is none."""
        if self._process is None or self._process.returncode is not None:
            await self.close()
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
            assert self._process.stdin  # noqa: S101  # for the type checker
            self._process.stdin.write(pack(tuple(self._hardware.rows.values())))
        return self._process

    async def ask(self, request: Request) -> Any:
        """Do a task. The process is ended where it fails or the caller does not wait for it.

        Raises:
            CheckTooCostlyError: the task used all of its CPU time.
            CheckBrokeError: it failed, or the process ended for another reason.
            NotAReviewError: the task was to examine a review, and it is none.
        """
        try:
            result = await self._ask(request)
        except (EOFError, ConnectionError) as error:
            code = await self.close()
            if code == -signal.SIGPROF:
                raise CheckTooCostlyError(f"its check needs more than {request.cpu_seconds:g} s of CPU time") from error
            raise CheckBrokeError(f"the process that checks jobs ended with {code}") from error
        except BaseException:
            await self.close()
            raise
        if result.is_worn:
            await self.close()
        if result.failure:
            raise CheckBrokeError(result.failure)
        if isinstance(result.value, NotAReviewError):
            raise result.value
        return result.value

    async def close(self) -> int | None:  # None: there was no process
        """End the process and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin  # noqa: S101  # for the type checker
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            if process.returncode is None:  # one that is ending keeps the reason why
                process.kill()
        return await asyncio.shield(process.wait())

    async def _ask(self, request: Request) -> Result:
        process = await self.start()
        assert process.stdin  # noqa: S101  # for the type checker
        assert process.stdout  # noqa: S101
        process.stdin.write(pack(request))
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        result: Result = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301  # our own process
        return result


class Checks:
    """Reviews and checks of jobs, each in a process of their own. `async with` ends the processes."""

    def __init__(self, hardware: Hardware, command: tuple[str, ...] = WORKER) -> None:
        """Check against a hardware table; no process runs yet."""
        self._reviews, self._review_turns = Worker(hardware, command), Turns()
        self._jobs, self._job_turns = Worker(hardware, command), Turns()
        self._examining: set[asyncio.Task[Examined]] = set()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        for examining in (left := tuple(self._examining)):
            examining.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._reviews.close()
        await self._jobs.close()

    async def warm_up(self) -> None:
        """Start the process for reviews, so that the first one need not wait for it."""
        async with self._review_turns.turn():
            await self._reviews.start()

    async def examine(self, body: bytes, peer: str) -> Examined:
        """Return what a review comes to.

        Raises:
            NotAReviewError: `body` is none.
            CheckBusyError: others took the time.
            CheckTooCostlyError: it needs more CPU time than a review may use.
            CheckBrokeError: it failed.
        """
        examining = asyncio.create_task(self._examine(body, peer))
        self._examining.add(examining)
        examining.add_done_callback(self._forget)
        try:
            # It goes on where nobody waits any more: a process that is slow must not be started again and again.
            async with asyncio.timeout(REVIEW_SECONDS):
                return await asyncio.shield(examining)
        except TimeoutError as error:
            raise CheckBusyError(f"the check did not end within {REVIEW_SECONDS:g} s") from error

    async def _examine(self, body: bytes, peer: str) -> Examined:
        async with self._review_turns.turn(peer, find_user(body), REVIEW_WAIT_SECONDS):
            try:
                async with asyncio.timeout(MAX_REVIEW_SECONDS):
                    examined: Examined = await self._reviews.ask(Request((body,), REVIEW_CPU_SECONDS))
                    return examined
            except TimeoutError as error:
                raise CheckBusyError(f"the check did not end within {MAX_REVIEW_SECONDS:g} s") from error

    def _forget(self, examining: asyncio.Task[Examined]) -> None:
        self._examining.discard(examining)
        if not examining.cancelled():
            examining.exception()  # nobody may be left to see it

    async def check(self, namespace: str, name: str, spec: object) -> Checked:
        """Return the verdict on a job, as `check_job` does.

        Raises:
            CheckBusyError: the check did not end in time.
            CheckTooCostlyError: it needs more CPU time than a check may use.
            CheckBrokeError: it failed.
        """
        try:
            async with asyncio.timeout(JOB_SECONDS), self._job_turns.turn(namespace):
                checked: Checked = await self._jobs.ask(Request((name, spec), JOB_CPU_SECONDS))
                return checked
        except TimeoutError as error:
            raise CheckBusyError(f"the check of job '{name}' did not end within {JOB_SECONDS:g} s") from error
