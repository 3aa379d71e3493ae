"""The webhook's HTTP: bodies of any size and shape come in, an answer goes out within a second."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from trainingjob_operator.shell.admission import MAX_BYTES, Admission, NotAReviewError
from trainingjob_operator.shell.logs import Log

PATH = "/validate"
MAX_DRAINED_BYTES = 64 * 1024 * 1024
"""A body that is too large is read to this length and thrown away: who still sends does not read the answer."""

type Measure = Callable[[float, bool], None]
"""Take note of one review: its seconds, and whether the object was let in."""

log = Log("webhook")


def webhook_app(admission: Admission, measure: Measure = lambda seconds, is_allowed: None) -> web.Application:
    """Return the web application that answers reviews."""

    async def validate(request: web.Request) -> web.Response:
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            review = await admission.answer(await read_body(request))
        except NotAReviewError as error:
            log.warning("not a review", error=str(error), source=request.remote)
            return web.Response(status=400, text=f"{error}\n")
        measure(clock() - begun, review["response"]["allowed"])
        return web.json_response(review)

    app = web.Application()
    app.router.add_post(PATH, validate)
    return app


async def read_body(request: web.Request) -> bytes:
    """Return the body; of one that is too large only a little more than is allowed."""
    kept = bytearray()
    num_read = 0
    async for chunk in request.content.iter_any():
        num_read += len(chunk)
        if len(kept) <= MAX_BYTES:
            kept += chunk
        if num_read > MAX_DRAINED_BYTES:
            break
    return bytes(kept[: MAX_BYTES + 1])
