"""The webhook's HTTP: bodies of any size, shape and speed come in, an answer goes out within a second.

Everything in the cluster can reach it, so what it holds of others' bytes is bounded: a body by its size, all bodies
together by theirs, and each by the time it takes to arrive.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.admission_review import MAX_BYTES, NotAReviewError
from trainingjob_operator.shell.logs import Log

PATH = "/validate"
MAX_DRAINED_BYTES = 64 * 1024 * 1024
"""A body that is too large is read to this length and thrown away: who still sends does not read the answer."""
MAX_HELD_BYTES = 32 * 1024 * 1024
"""Of all bodies together. Thousands of jobs that are applied at once need less."""
STALL_SECONDS = 1.0
"""How long a body may stand still."""
BODY_SECONDS = 5.0
"""How long a body may take in all. The API server itself does not wait longer."""

type Measure = Callable[[float, bool], None]
"""Take note of one review: its seconds, and whether the object was let in."""

log = Log("webhook")


class SlowError(Exception):
    """The body did not arrive in time."""


class BusyError(Exception):
    """All bodies together are more than is held at a time."""


class Intake:
    """The bodies that are in the webhook's memory now."""

    def __init__(self, stall_seconds: float = STALL_SECONDS, max_held: int = MAX_HELD_BYTES) -> None:
        """Hold at most so many bytes, and wait so long for the next ones of a body."""
        self.held = 0
        self._stall_seconds = stall_seconds
        self._max_held = max_held

    @asynccontextmanager
    async def body(self, request: web.Request) -> AsyncIterator[bytes]:
        """Hold the body of a request; of one that is too large only a little more than is allowed.

        Raises:
            SlowError: it stands still, or takes too long.
            BusyError: there is no room for it beside the others.
        """
        kept = bytearray()
        try:
            await self._read(request, kept)
            yield bytes(kept[: MAX_BYTES + 1])
        finally:
            self.held -= len(kept)

    async def _read(self, request: web.Request, kept: bytearray) -> None:
        now = asyncio.get_running_loop().time
        end, num_read = now() + BODY_SECONDS, 0
        try:
            async with asyncio.timeout(self._stall_seconds) as limit:
                async for chunk in request.content.iter_any():
                    limit.reschedule(min(end, now() + self._stall_seconds))
                    num_read += len(chunk)
                    if len(kept) <= MAX_BYTES:
                        kept += chunk
                        self.held += len(chunk)
                    if self.held > self._max_held:
                        raise BusyError("the webhook holds too many requests: try again")
                    if num_read > MAX_DRAINED_BYTES:
                        return
        except TimeoutError as error:
            raise SlowError(f"the body did not arrive in time: {num_read} bytes of it did") from error


def webhook_app(
    admission: Admission,
    measure: Measure = lambda seconds, is_allowed: None,
    intake: Intake | None = None,  # None: a new one, with the bounds of this module
) -> web.Application:
    """Return the web application that answers reviews."""
    intake = intake or Intake()

    async def validate(request: web.Request) -> web.Response:
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            async with intake.body(request) as body:
                review = await admission.answer(body, request.remote or "")
        except NotAReviewError as error:
            return _refuse(request, web.HTTPBadRequest.status_code, error)
        except SlowError as error:
            return _refuse(request, web.HTTPRequestTimeout.status_code, error)
        except BusyError as error:
            return _refuse(request, web.HTTPTooManyRequests.status_code, error)
        measure(clock() - begun, review["response"]["allowed"])
        return web.json_response(review)

    app = web.Application()
    app.router.add_post(PATH, validate)
    return app


def _refuse(request: web.Request, status: int, error: Exception) -> web.Response:
    """Return the answer to what is no review, and close the connection: the rest of it is not wanted."""
    log.warning("not a review", error=str(error), source=request.remote)
    response = web.Response(status=status, text=f"{error}\n")
    response.force_close()
    if status == web.HTTPTooManyRequests.status_code:
        response.headers["Retry-After"] = "1"  # the API server's client asks again only where it is told when
    return response
