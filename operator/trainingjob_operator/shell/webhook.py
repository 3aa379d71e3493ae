"""HTTP server of the admission webhook, with limits for untrusted clients.

Every pod in the cluster can reach the webhook. The limits are the size of one body, the total size of all bodies in
memory, and the time until a body arrives.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.admission_review import MAX_BYTES, NotAReviewError
from trainingjob_operator.shell.logging_setup import Log

PATH = "/validate"
MAX_DISCARDED_BYTES = 64 * 1024 * 1024
"""Maximum length of an oversized body that is read and discarded: a client reads no answer while it sends."""
MAX_BODIES_BYTES = 32 * 1024 * 1024
"""Total size of all bodies in memory. Thousands of simultaneously applied jobs need less."""
STALL_SECONDS = 1.0
"""Timeout between two chunks of a body."""
BODY_SECONDS = 5.0
"""Timeout of a whole body. The API server itself does not wait longer."""

type Measure = Callable[[float, bool], None]
"""Record one review: its duration in seconds, and whether the object is allowed."""

log = Log("webhook")


class BodyTimeoutError(Exception):
    """The body did not arrive in time."""


class BodyMemoryLimitError(Exception):
    """The total size of all bodies exceeds the limit."""


class BodyReader:
    """Memory limit for the bodies of running requests."""

    def __init__(self, stall_seconds: float = STALL_SECONDS, max_held_bytes: int = MAX_BODIES_BYTES) -> None:
        """Limit the total size to `max_held_bytes`, and the time between two chunks to `stall_seconds`."""
        self.held_bytes = 0
        self._stall_seconds = stall_seconds
        self._max_held_bytes = max_held_bytes

    @asynccontextmanager
    async def read_body(self, request: web.Request) -> AsyncIterator[bytes]:
        """Read the body of a request. An oversized body is truncated to one byte more than the limit.

        Raises:
            BodyTimeoutError: the body stalls or takes too long.
            BusyError: the total size of all bodies exceeds the limit.
        """
        buffer = bytearray()
        try:
            await self._read(request, buffer)
            yield bytes(buffer[: MAX_BYTES + 1])
        finally:
            self.held_bytes -= len(buffer)

    async def _read(self, request: web.Request, buffer: bytearray) -> None:
        now = asyncio.get_running_loop().time
        end, num_read = now() + BODY_SECONDS, 0
        try:
            async with asyncio.timeout(self._stall_seconds) as limit:
                async for chunk in request.content.iter_any():
                    limit.reschedule(min(end, now() + self._stall_seconds))
                    num_read += len(chunk)
                    if len(buffer) <= MAX_BYTES:
                        buffer += chunk
                        self.held_bytes += len(chunk)
                    if self.held_bytes > self._max_held_bytes:
                        raise BodyMemoryLimitError("the webhook has too many open requests: try again")
                    if num_read > MAX_DISCARDED_BYTES:
                        return
        except TimeoutError as error:
            raise BodyTimeoutError(f"the body did not arrive in time: received {num_read} bytes") from error


def webhook_app(
    admission: Admission,
    measure: Measure = lambda seconds, is_allowed: None,
    body_reader: BodyReader | None = None,  # None: a new one with the default limits
) -> web.Application:
    """Return the web application of the webhook."""
    body_reader = body_reader or BodyReader()

    async def validate(request: web.Request) -> web.Response:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        try:
            async with body_reader.read_body(request) as body:
                review = await admission.review(body, request.remote or "")
        except NotAReviewError as error:
            return _error_response(request, web.HTTPBadRequest.status_code, error)
        except BodyTimeoutError as error:
            return _error_response(request, web.HTTPRequestTimeout.status_code, error)
        except BodyMemoryLimitError as error:
            return _error_response(request, web.HTTPTooManyRequests.status_code, error)
        measure(clock() - started_at, review["response"]["allowed"])
        return web.json_response(review)

    app = web.Application()
    app.router.add_post(PATH, validate)
    return app


def _error_response(request: web.Request, status: int, error: Exception) -> web.Response:
    """Return an error response, and close the connection, since the rest of the body is not read."""
    log.warning("rejected a request that is not a review", error=str(error), source=request.remote)
    response = web.Response(status=status, text=f"{error}\n")
    response.force_close()
    if status == web.HTTPTooManyRequests.status_code:
        response.headers["Retry-After"] = "1"  # the API server's client retries only with this header
    return response
