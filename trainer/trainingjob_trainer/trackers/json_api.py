"""Requests to a server's JSON API, for trackers whose own client would bring a web framework into the image."""

import json
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from trainingjob_trainer.trackers.tracker import UnreachableError

REQUEST_SECONDS = 30.0
"""Seconds without data from the server after which a request fails."""
MAX_ANSWER_BYTES = 1 << 20
NOT_READY_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses of a server that restarts, of the proxy before it, and of a server that limits the rate."""


class RejectedRequestError(Exception):
    """The server rejects a request. `answer` are the fields of its answer; empty: the answer is not JSON."""

    def __init__(self, message: str, answer: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.answer = answer


class JsonApi:
    """The JSON API below an address. `headers` go with each request, and never to another server."""

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        self._root = root
        self._headers = {"Content-Type": "application/json", **headers}
        self._opener = build_opener(_NoRedirects)

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:  # None: it is not JSON
        """Return the answer to a request: a GET without a body, else a POST.

        Raises:
            RejectedRequestError: the server rejects it. The message has the text of the field `message` or `error`.
            UnreachableError: the server cannot be reached, or answers that it is overloaded or not ready.
        """
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._root}/{path}", data, self._headers)  # noqa: S310  # the API allows http and https only
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as response:
                return _parse(response.read(MAX_ANSWER_BYTES))
        except HTTPError as error:
            with error:
                answer = _parse(error.read(MAX_ANSWER_BYTES)) or {}
            message = f"HTTP {error.code}: {answer.get('message') or answer.get('error') or error.reason}"
            if error.code in NOT_READY_STATUSES:
                raise UnreachableError(message) from None
            raise RejectedRequestError(message, answer) from None
        except (OSError, HTTPException) as error:  # an answer that ends early is no `OSError`
            raise UnreachableError(str(error) or type(error).__name__) from error


class _NoRedirects(HTTPRedirectHandler):
    """Rejects redirects: they would send the credentials to another server."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Return no request, so that the redirect becomes an error."""


def _parse(data: bytes) -> dict[str, Any] | None:  # None: it is not a JSON object
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None
