"""The report loop: one report is always waiting for its answer, or about to be sent.

The operator delays the answer until it has a change, so a pending report delivers commands at once. When the state of
this host changes, the agent sends a new report beside the pending one, and the operator then answers the pending one.
Canceling the pending report instead would lose an answer in flight. A host that changes all the time would then get no
answer.

An unreachable operator is retried with exponential backoff and jitter, so that the hosts of a job do not reconnect at
the same time.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from trainingjob_agent.rendezvous import RendezvousError
from trainingjob_api.protocol import Answer, HostReport

LOG = logging.getLogger(__name__)
MIN_INTERVAL_SECONDS = 0.2
"""Minimum seconds between the starts of two reports."""
MAX_PENDING = 2
"""Maximum number of pending reports beside the newest one."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 5.0
LAST_REPORT_SECONDS = 2.0


class Post(Protocol):
    """Send a report and return its answer. Raises `RendezvousError`."""

    async def __call__(self, report: HostReport) -> Answer: ...  # noqa: D102


class Reporter:
    """Sends the reports of `describe`, and passes each answer on."""

    def __init__(self, post: Post, describe: Callable[[], HostReport], on_answer: Callable[[Answer], None]) -> None:
        self._post = post
        self._describe = describe
        self._on_answer = on_answer
        self._changed = asyncio.Event()
        self._pending: deque[asyncio.Future[Answer]] = deque()
        self._failures = 0
        self._suspended_seconds = 0.0

    def suspend(self, seconds: float) -> None:
        """Send one more report, then none for some seconds."""
        self._suspended_seconds = seconds

    def report_now(self) -> None:
        """Send a new report at once, because the state has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Report until cancelled."""
        try:
            await self._report()
        finally:
            unanswered = tuple(self._pending)
            self._cancel_pending(keep=0)
            await asyncio.gather(*unanswered, return_exceptions=True)

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            start = loop.time()
            self._changed.clear()
            silence = self._suspended_seconds
            pause = await self._exchange()
            if silence and pause:  # no newer report overtook it
                self._suspended_seconds = 0.0
                await asyncio.sleep(silence)
            await asyncio.sleep(start + MIN_INTERVAL_SECONDS - loop.time())
            await self._wait_for_change(start + pause - loop.time())

    async def send_last_report(self) -> None:
        """Send a last report and ignore the answer."""
        try:
            async with asyncio.timeout(LAST_REPORT_SECONDS):
                await self._post(self._describe())
        except (RendezvousError, TimeoutError) as error:
            LOG.info("the last report stayed without an answer error=%r", str(error))

    async def _exchange(self) -> float:
        """Send a report; return the seconds from its start to the next regular one."""
        post = asyncio.ensure_future(self._post(self._describe()))
        self._pending.append(post)
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({post, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if not post.done():
            post.add_done_callback(self._accept_late)
            self._cancel_pending(keep=MAX_PENDING)
            return 0.0
        self._cancel_pending(keep=0)
        return self._accept(post)

    def _accept_late(self, post: asyncio.Future[Answer]) -> None:
        """Pass on the answer to an overtaken report, and cancel older reports, whose answers are now obsolete."""
        if not post.cancelled() and post.exception() is None and post in self._pending:
            self._cancel_pending(keep=len(self._pending) - self._pending.index(post) - 1)
            self._on_answer(post.result())

    def _cancel_pending(self, keep: int) -> None:
        """Cancel all pending reports but the newest `keep`."""
        while len(self._pending) > keep:
            self._pending.popleft().cancel()

    def _accept(self, post: asyncio.Future[Answer]) -> float:
        try:
            answer = post.result()
        except RendezvousError as error:
            if not self._failures:
                LOG.warning("operator unreachable error=%r", str(error))
            longest = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(self._failures, 10))
            self._failures += 1
            return random.uniform(longest / 2, longest)  # noqa: S311  # jitter, not cryptography
        if self._failures:
            LOG.info("the operator answers again failures=%d", self._failures)
            self._failures = 0
        self._on_answer(answer)
        return answer.report_again_seconds

    async def _wait_for_change(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
