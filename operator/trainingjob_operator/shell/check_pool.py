"""Checks of jobs in worker processes, with fair queueing and time limits.

A check can take a second of CPU time, and every pod in the cluster can request one. Reviews and the reconciler have
separate workers, so that neither delays the other. The queue is fair: round-robin over peers, and over the users of
each peer. A peer with many requests therefore delays no other peer.
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

from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.validation.validate import ValidationResult
from trainingjob_operator.shell.admission_review import NotAReviewError, scan_user
from trainingjob_operator.shell.check_worker import LENGTH, Request, Result, encode_message
from trainingjob_operator.shell.interfaces import BusyError
from trainingjob_operator.shell.review_evaluation import ReviewResult

WORKER = (sys.executable, "-P", "-c", "from trainingjob_operator.shell.check_worker import main; main()")
"""Not `-m`: classes of a main module have the module name `__main__`, so the operator could not unpickle them."""
REVIEW_CPU_SECONDS = 2.0
"""CPU time limit of a review. The most expensive valid specs need half a second on a slow machine."""
REVIEW_WAIT_SECONDS = 2.5
"""Queue timeout of a review, and of the permission check after it.

Together with `REVIEW_SECONDS` shorter than the API server's timeout, so that the error message arrives.
"""
REVIEW_SECONDS = 4.0
"""Timeout of a review, including its wait in the queue."""
MAX_REVIEW_SECONDS = 60.0
"""Timeout after which a review's worker is killed despite low CPU use: the worker is stopped or starved."""
JOB_CPU_SECONDS = 10.0
JOB_SECONDS = 120.0
IDLE_SECONDS = 60.0
"""Time without a job to check after which the worker for jobs ends. It takes 45 MiB, and half a second to start."""
MAX_WAITING = 64
"""Maximum number of queued requests per peer."""


class CheckBusyError(BusyError):
    """The check did not start or finish in time. A retry may succeed."""


class CheckCpuLimitError(Exception):
    """The check exceeded its CPU time limit. A retry with the same spec fails again."""


class CheckFailedError(Exception):
    """The check failed because of a bug in the operator. The message holds the traceback."""


class FairQueue:
    """A fair queue: `at_once` concurrent holders, round-robin over peers and over the users of each peer."""

    def __init__(self, max_waiting: int = MAX_WAITING, at_once: int = 1) -> None:
        """Limit the waiters of each peer to `max_waiting`."""
        self._max_waiting = max_waiting
        self._num_free = at_once
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}

    @contextlib.asynccontextmanager
    async def acquire(self, peer: str = "", user: str = "", seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for a free slot and hold it; `seconds` is the timeout of the wait.

        Raises:
            CheckBusyError: this peer has too many waiters, or the wait timed out.
        """
        if self._num_free:
            self._num_free -= 1
        else:
            await self._wait(peer, user, seconds)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, peer: str, user: str, seconds: float | None) -> None:
        users = self._waiting.setdefault(peer, {})
        if sum(map(len, users.values())) >= self._max_waiting:
            raise CheckBusyError(f"{self._max_waiting} requests of {peer} are already queued")
        waiter = asyncio.get_running_loop().create_future()
        users.setdefault(user, deque()).append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # the slot became free at the same time
                self._release()
            else:
                self._forget(peer, user, waiter)
            if isinstance(error, TimeoutError):
                raise CheckBusyError(f"other requests used all of its {seconds:g} s") from error
            raise

    def _release(self) -> None:
        """Assign the slot to the next user of the next peer."""
        while self._waiting:
            peer, users = next(iter(self._waiting.items()))
            user, waiting = next(iter(users.items()))
            waiter = waiting.popleft()
            del self._waiting[peer], users[user]  # peer and user move to the end of their queues
            if waiting:
                users[user] = waiting
            if users:
                self._waiting[peer] = users
            if not waiter.done():
                waiter.set_result(None)
                return
        self._num_free += 1

    def _forget(self, peer: str, user: str, waiter: asyncio.Future[None]) -> None:
        users = self._waiting.get(peer, {})
        waiting = users.get(user, deque())
        with contextlib.suppress(ValueError):
            waiting.remove(waiter)
        if not waiting:
            users.pop(user, None)
        if not users:
            self._waiting.pop(peer, None)


class WorkerProcess:
    """One worker process that runs one task at a time. It starts at the first task and restarts after its end."""

    def __init__(self, catalog: Catalog, command: tuple[str, ...] = WORKER) -> None:
        self._catalog = catalog
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """Return the process; start it if none runs."""
        if self._process is None or self._process.returncode is not None:
            await self.close()
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
            assert self._process.stdin  # noqa: S101  # for the type checker
            self._process.stdin.write(encode_message(self._catalog.added))
        return self._process

    async def run_task(self, request: Request) -> Any:
        """Run a task. If communication with the process fails, or the caller cancels, the process is killed.

        Raises:
            CheckCpuLimitError: the task exceeded its CPU time limit.
            CheckFailedError: the task failed, or the process ended for another reason.
            NotAReviewError: the task was a review, and its body is not an AdmissionReview.
        """
        try:
            result = await self._exchange(request)
        except (EOFError, ConnectionError) as error:
            code = await self.close()
            if code == -signal.SIGPROF:
                raise CheckCpuLimitError(f"its check needs more than {request.cpu_seconds:g} s of CPU time") from error
            raise CheckFailedError(f"the process that checks jobs exited with code {code}") from error
        except BaseException:
            await self.close()
            raise
        if result.needs_replacement:
            await self.close()
        if result.failure:
            raise CheckFailedError(result.failure)
        if isinstance(result.value, NotAReviewError):
            raise result.value
        return result.value

    async def close(self) -> int | None:  # None: no process ran
        """Kill the process and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin  # noqa: S101  # for the type checker
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            if process.returncode is None:  # an exited process keeps its exit code
                process.kill()
        return await asyncio.shield(process.wait())

    async def _exchange(self, request: Request) -> Result:
        process = await self.start()
        assert process.stdin  # noqa: S101  # for the type checker
        assert process.stdout  # noqa: S101
        process.stdin.write(encode_message(request))
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        result: Result = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301  # our own process
        return result


class CheckPool:
    """Reviews and checks of jobs, in separate worker processes. `async with` kills the workers."""

    def __init__(self, catalog: Catalog, command: tuple[str, ...] = WORKER, namespaces: tuple[str, ...] = ()) -> None:
        """Check jobs with the given tables. Reviews reject new jobs outside of `namespaces`; empty: of none."""
        self._namespaces = namespaces
        self._reviews, self._review_queue = WorkerProcess(catalog, command), FairQueue()
        self._jobs, self._job_queue = WorkerProcess(catalog, command), FairQueue()
        self._running_reviews: set[asyncio.Task[ReviewResult]] = set()
        self._idle_timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = (*self._running_reviews, *filter(None, (self._idle_timer,)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reviews.close()
        await self._jobs.close()

    async def warm_up(self) -> None:
        """Start the worker for reviews, so that the first review does not wait for the startup."""
        async with self._review_queue.acquire():
            await self._reviews.start()

    async def evaluate_review(self, body: bytes, peer: str) -> ReviewResult:
        """Evaluate a review.

        Raises:
            NotAReviewError: `body` is not an AdmissionReview.
            CheckBusyError: other requests delayed the review beyond its timeout.
            CheckCpuLimitError: the review exceeded its CPU time limit.
            CheckFailedError: the review failed.
        """
        task = asyncio.create_task(self._evaluate(body, peer))
        self._running_reviews.add(task)
        task.add_done_callback(self._forget)
        try:
            # The review continues after this timeout: a slow worker must not be restarted for every review.
            async with asyncio.timeout(REVIEW_SECONDS):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise CheckBusyError(f"the check did not end within {REVIEW_SECONDS:g} s") from error

    async def _evaluate(self, body: bytes, peer: str) -> ReviewResult:
        async with self._review_queue.acquire(peer, scan_user(body), REVIEW_WAIT_SECONDS):
            try:
                async with asyncio.timeout(MAX_REVIEW_SECONDS):
                    request = Request((body, self._namespaces), REVIEW_CPU_SECONDS)
                    result: ReviewResult = await self._reviews.run_task(request)
                    return result
            except TimeoutError as error:
                raise CheckBusyError(f"the check did not end within {MAX_REVIEW_SECONDS:g} s") from error

    def _forget(self, task: asyncio.Task[ReviewResult]) -> None:
        self._running_reviews.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have timed out; avoids a warning of asyncio

    async def check(self, namespace: str, name: str, spec: object) -> ValidationResult:
        """Run `validate_job` in the worker.

        Raises:
            CheckBusyError: the check timed out.
            CheckCpuLimitError: the check exceeded its CPU time limit.
            CheckFailedError: the check failed.
        """
        try:
            async with asyncio.timeout(JOB_SECONDS), self._job_queue.acquire(namespace):
                if self._idle_timer:
                    self._idle_timer.cancel()
                result: ValidationResult = await self._jobs.run_task(Request((namespace, name, spec), JOB_CPU_SECONDS))
                self._idle_timer = asyncio.create_task(self._close_idle_worker())
                return result
        except TimeoutError as error:
            raise CheckBusyError(f"the check of job '{name}' did not end within {JOB_SECONDS:g} s") from error

    async def _close_idle_worker(self) -> None:
        await asyncio.sleep(IDLE_SECONDS)
        async with self._job_queue.acquire():
            await self._jobs.close()
