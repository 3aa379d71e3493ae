"""Requests to the HTTP API of an object store: signed, repeated, and with every failure as an OSError."""

import errno
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import requests
import requests.adapters
from requests.auth import AuthBase

from trainingjob_trainer.store.bucket import PreconditionError
from trainingjob_trainer.store.retry import (
    ExpiredCredentialsError,
    TransientError,
    WebPageError,
    call_with_retries,
    throttled,
)

CONNECT_SECONDS, SILENT_SECONDS = 10.0, 30.0
"""Seconds for a connection, and between two packets of an answer."""
ATTEMPT_SECONDS = 120.0
"""Seconds for the body of one answer: a slow connection is replaced."""
READ_BYTES = 1 << 20
BUSY = {408, 425, 429, 500, 502, 503, 504}
"""Statuses of a store that is overloaded or restarts."""
POOL_SIZE = 32
MAX_SHOWN = 200


class Request(NamedTuple):
    """A request. `path` and the query are percent-encoded by the caller."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    accepted: Collection[int] = (200,)
    """Statuses that the caller interprets."""


class Answer(NamedTuple):
    """The answer of a store, with all of its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """The connections to one endpoint. `bucket` is the URI of the bucket in messages.

    `expired_codes` and `busy_codes` are texts of the store in the body of an error answer.
    """

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        auth: AuthBase,
        refresh: Callable[[], None],
        expired_codes: Collection[str] = (),
        busy_codes: Collection[str] = (),
    ) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._bucket = bucket
        self._auth = auth
        self._refresh = refresh
        self._expired_codes = expired_codes
        self._busy_codes = busy_codes
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=POOL_SIZE))

    def send(self, request: Request, check: Callable[[Answer], None] = lambda _: None) -> Answer:
        """Return the answer to a request, which is repeated while the store is busy or `check` fails transiently.

        Raises:
            PreconditionError: the store answers 412.
            OSError: the request failed; see `Bucket`.
        """

        def send_and_check() -> Answer:
            answer = self._send_once(request)
            check(answer)
            return answer

        return call_with_retries(send_and_check, self._refresh)

    def _send_once(self, request: Request) -> Answer:
        url = self._endpoint + request.path + (f"?{request.query}" if request.query else "")
        try:
            with self._session.request(
                request.method,
                url,
                data=request.body,
                headers=dict(request.headers),
                auth=self._auth,
                timeout=(CONNECT_SECONDS, SILENT_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as response:
                answer = Answer(response.status_code, response.headers, _read_body(response))
        except requests.exceptions.Timeout as error:
            raise TransientError(errno.ETIMEDOUT, f"{self._bucket} does not answer: {error}") from error
        except (requests.exceptions.RequestException, ConnectionError) as error:
            raise TransientError(errno.EIO, f"the connection to {self._bucket} failed: {error}") from error
        self._check(request, answer)
        return answer

    def _check(self, request: Request, answer: Answer) -> None:
        """Raise the error of an answer that the caller does not interpret."""
        shown = answer.body[:MAX_SHOWN].decode(errors="replace").strip()
        is_error = answer.status >= 300  # the body of another answer is the user's data, with any words in it
        if answer.status in BUSY or (is_error and any(code in shown for code in self._busy_codes)):
            raise throttled(f"{self._bucket} is overloaded: status {answer.status} {shown}".rstrip())
        if _is_web_page(answer):
            raise WebPageError(
                errno.EIO,
                f"{self._bucket}: the answer with status {answer.status} is a web page and not that of an object "
                f"store. Check the endpoint and the proxies of the pod: {shown}",
            )
        if answer.status in request.accepted:
            return
        is_nameless = request.method == "HEAD" and answer.status == 400  # of S3: an expired token, without its code
        if answer.status == 401 or is_nameless or any(code in shown for code in self._expired_codes):
            raise ExpiredCredentialsError(errno.EACCES, f"{self._bucket} refuses the credentials: {shown}")
        if answer.status == 403:
            raise PermissionError(errno.EACCES, f"no permission for {self._bucket}: {shown}")
        if answer.status == 412:
            raise PreconditionError(errno.EEXIST, f"{self._bucket}: {request.path} exists or has changed")
        if answer.status == 404:
            raise FileNotFoundError(errno.ENOENT, f"{self._bucket} does not exist: {shown}")
        raise OSError(errno.EIO, f"{self._bucket} refuses {request.method} {request.path}: {answer.status} {shown}")


def _is_web_page(answer: Answer) -> bool:
    """Return whether something else has answered, such as the login page of a proxy. Objects have an ETag."""
    return answer.headers.get("Content-Type", "").startswith("text/html") and "ETag" not in answer.headers


def _read_body(response: requests.Response) -> bytes:
    deadline = time.monotonic() + ATTEMPT_SECONDS
    parts = []
    for part in response.iter_content(READ_BYTES):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TransientError(errno.ETIMEDOUT, f"an answer took more than {ATTEMPT_SECONDS:.0f} s")
    return b"".join(parts)
