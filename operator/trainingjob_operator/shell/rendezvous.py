"""HTTP endpoint of the rendezvous: agents report their state and receive directives.

Each report is a heartbeat and a long poll: the operator holds the answer until it changes for that host, or until
`LONG_POLL_SECONDS` have passed. A token authenticates each caller as one pod, and the caller can report only for that
pod.

If the operator has no reliable answer, it responds 503 with a reason. Agents then continue with their last directive.
"""

import asyncio
import gzip
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from pydantic import ValidationError

from trainingjob_api.protocol import REPORT_PATH, Answer, HostReport
from trainingjob_operator.shell.connections import AUTHENTICATE
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import (
    Authenticator,
    BusyError,
    Caller,
    ClusterUnavailableError,
    UnauthenticatedCallerError,
)
from trainingjob_operator.shell.logging_setup import Log, RateLimitedLog
from trainingjob_operator.shell.reviews import bearer_token

LONG_POLL_SECONDS = 1.0
MAX_BODY_BYTES = 64 * 1024
MIN_COMPRESSED_BYTES = 16 * 1024
"""Size from which an answer is compressed: that of a world with about a hundred hosts."""
MAX_ENCODED = 1024
"""Maximum number of encoded answers that are kept. A job has a few."""
MAX_PARSED = 16_384
"""Maximum number of parsed reports that are kept: one for each pod."""
type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SCHEMA = HostReport.model_json_schema()
SCHEMA_NAMES = frozenset(
    name for model in (SCHEMA, *SCHEMA.get("$defs", {}).values()) for name in model.get("properties", ())
)
"""Fields of a report and its parts. Error messages replace all other keys, since a caller controls them."""

log = Log("rendezvous")


def rendezvous_app(
    hub: Hub,
    authenticator: Authenticator,
    is_leading: Callable[[], bool] = lambda: True,
    secret: Callable[[], str] = lambda: "",
    moves_agents: Callable[[], bool] = lambda: False,
) -> web.Application:
    """Return the web application that serves `POST /v1/report`."""
    return route_reports(Rendezvous(hub, authenticator, is_leading, secret, moves_agents).report)


def route_reports(report: Handler) -> web.Application:
    """Return a web application that routes `POST /v1/report` to a handler."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(REPORT_PATH, report)
    return app


@dataclass(frozen=True)
class _EncodedAnswer:
    """An answer of the hub, the operator's secret in it, and its bytes."""

    answer: Answer
    secret: str
    body: bytes
    compressed: bytes
    """The body with gzip. Empty: it is small."""
    tag: str

    @classmethod
    def of(cls, answer: Answer, secret: str, body: bytes) -> "_EncodedAnswer":
        """Return an answer with its bytes."""
        compressed = gzip.compress(body, compresslevel=1) if len(body) >= MIN_COMPRESSED_BYTES else b""
        return cls(answer, secret, body, compressed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


class Rendezvous:
    """Handler of reports."""

    def __init__(
        self,
        hub: Hub,
        authenticator: Authenticator,
        is_leading: Callable[[], bool],
        secret: Callable[[], str] = lambda: "",
        moves_agents: Callable[[], bool] = lambda: False,
    ) -> None:
        """Forward reports to a hub. Reject all reports while another operator leads.

        While `moves_agents` returns True, each answer closes its connection.
        """
        self._hub = hub
        self._authenticator = authenticator
        self._is_leading = is_leading
        self._secret = secret
        self._moves_agents = moves_agents
        self._encoded: OrderedDict[int, _EncodedAnswer] = OrderedDict()
        self._parsed: OrderedDict[str, tuple[bytes, HostReport]] = OrderedDict()
        self._rejection_log = RateLimitedLog(log, asyncio.get_running_loop().time)

    async def report(self, request: web.Request) -> web.Response:
        """Handle one report."""
        is_leading = self._is_leading()
        response = await self._handle(request) if is_leading else _error_response(503, "another operator leads; retry")
        if not is_leading or self._moves_agents():
            response.force_close()  # the Service routes the next connection to the leader, whose pod is labelled
        return response

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            caller = await self._authenticate(request)
            report = self._parse(await request.read(), caller)
        except UnauthenticatedCallerError as error:
            self._rejection_log.warning("rejected a caller", peer=request.remote, error=str(error))
            response = _error_response(401, str(error))
            response.force_close()  # an unauthenticated caller keeps no connection
            return response
        except BusyError as error:
            return _error_response(429, f"cannot authenticate the caller now: {error}")
        except ClusterUnavailableError as error:
            self._hub.reset_silence()
            return _error_response(503, f"cannot authenticate the caller now: {error}")
        except web.HTTPRequestEntityTooLarge:
            return _error_response(413, f"a report must have at most {MAX_BODY_BYTES} bytes")
        except ValidationError as error:
            return _error_response(400, f"invalid report: {_describe(error)}")
        if (report.job_uid, report.pod_uid) != (caller.job_uid, caller.pod_uid):
            message = f"pod {caller.pod_uid} of job {caller.job_uid} must not report for another pod"
            self._rejection_log.warning("rejected a report", peer=request.remote, error=message)
            return _error_response(403, message)
        if self._hub.paused_seconds(caller.job_key):
            return _error_response(503, "a drill: this operator does not respond to the job")
        return await self._answer(caller, report, request)

    async def _answer(self, caller: Caller, report: HostReport, request: web.Request) -> web.Response:
        """Store a report, and answer when the answer changes or the hold time ends.

        An answer names all hosts of a world. An agent that sends the ETag of its last answer gets the same one only as
        status 304.
        """
        self._hub.receive(caller, report)
        answer = await self._hub.answer(caller, report.instance, LONG_POLL_SECONDS)
        if answer is None or not self._is_leading():
            return _error_response(503, "the job has not been reconciled yet; retry")
        encoded = self._encode(answer, caller)
        headers = {"ETag": encoded.tag}
        if request.headers.get("If-None-Match") == encoded.tag:
            return web.Response(status=304, headers=headers)
        body, accepted = encoded.body, request.headers.get("Accept-Encoding", "")
        if encoded.compressed and "gzip" in accepted:
            body = encoded.compressed
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers, content_type="application/json")

    def _encode(self, answer: Answer, caller: Caller) -> "_EncodedAnswer":
        """Return an answer as it is sent. The hosts of a job share the answer, so it is encoded once."""
        secret = self._secret() if answer.world or answer.shadow else ""  # only for members of a world
        encoded = self._encoded.pop(id(answer), None)
        if encoded is None or encoded.answer is not answer or encoded.secret != secret:
            complete_answer = answer.model_copy(update={"program_secret": derive_program_secret(secret, caller)})
            encoded = _EncodedAnswer.of(answer, secret, complete_answer.model_dump_json(by_alias=True).encode())
        self._encoded[id(answer)] = encoded
        if len(self._encoded) > MAX_ENCODED:
            self._encoded.popitem(last=False)
        return encoded

    def _parse(self, body: bytes, caller: Caller) -> HostReport:
        """Return a report. Most reports of a pod equal its last one, and are the same object then.

        Raises:
            ValidationError: the body is not a report.
        """
        cached = self._parsed.pop(caller.pod_uid, None)
        if cached is None or cached[0] != body:
            cached = body, HostReport.model_validate_json(body, extra="ignore")  # an agent may be newer
        self._parsed[caller.pod_uid] = cached
        if len(self._parsed) > MAX_PARSED:
            self._parsed.popitem(last=False)
        return cached[1]

    async def _authenticate(self, request: web.Request) -> Caller:
        if not (token := bearer_token(request)):
            raise UnauthenticatedCallerError("a report needs the header `Authorization: Bearer TOKEN`")
        caller = await self._authenticator.authenticate(token, request.remote or "")
        if mark_authenticated := request.get(AUTHENTICATE):
            mark_authenticated(caller.pod_uid)
        return caller


def derive_program_secret(secret: str, caller: Caller) -> str:
    """Derive the key with which a job's hosts authenticate their compiled programs. Empty: the operator has no secret.

    A compiled program is code on storage that pods of other jobs may be able to write, so the key is not on that
    storage. Users with only read access to the namespace must not see the key either. The key is therefore not in a
    ConfigMap, the status or a pod variable. Only authenticated pods that the status lists as members of a world receive
    the key.

    The key is derived from the private key of the operator's certificates. The operator therefore stores nothing per
    job, and needs no permission on Secrets of other namespaces. Every operator derives the same key, also after a
    restart. After a renewal of the private key, hosts compile their programs again.

    The key depends on the job's UID: a job that takes over a folder does not load programs of the former owner.
    """
    info = f"trainingjob.dev/compiled-programs\0{caller.namespace}\0{caller.job_uid}"
    return hmac.digest(secret.encode(), info.encode(), "sha256").hex() if secret else ""


def _error_response(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _describe(error: ValidationError) -> str:
    """Return the first problems of a report, without its values and without keys that the schema does not define."""
    problems = [
        f"{'.'.join(_redact_key(part) for part in item['loc']) or 'body'}: {item['msg']}" for item in error.errors()[:5]
    ]
    return "; ".join(problems)


def _redact_key(part: str | int) -> str:
    return str(part) if isinstance(part, int) or part in SCHEMA_NAMES else "KEY"
