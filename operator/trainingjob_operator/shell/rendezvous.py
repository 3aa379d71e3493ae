"""The rendezvous: where agents report, and hear what to do.

One request is heartbeat, state and command at once: its answer is held back until there is news for that host or a
moment has passed. Every caller proves by its token which pod it is, and may speak only for that pod.

Wherever this operator cannot answer for sure, it says 503 and why: agents then go on with what they were told last.
"""

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from trainingjob_api.protocol import REPORT_PATH, HostReport
from trainingjob_operator.shell.connections import PROVE
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.logs import Log, RareLog
from trainingjob_operator.shell.ports import (
    Authenticator,
    BusyError,
    Caller,
    ClusterUnavailableError,
    UnknownCallerError,
)

HOLD_SECONDS = 1.0
MAX_BODY_BYTES = 64 * 1024
type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

FIELDS = frozenset(re.findall(r"[A-Za-z]+", json.dumps(HostReport.model_json_schema())))
"""The words that a report may be made of."""

log = Log("rendezvous")


def make_app(
    hub: Hub,
    authenticator: Authenticator,
    is_leading: Callable[[], bool] = lambda: True,
    secret: Callable[[], str] = lambda: "",
) -> web.Application:
    """Return the application that serves `POST /v1/report`."""
    return route_reports(Rendezvous(hub, authenticator, is_leading, secret).report)


def route_reports(report: Handler) -> web.Application:
    """Return the application whose `POST /v1/report` goes to a handler."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(REPORT_PATH, report)
    return app


class Rendezvous:
    """Takes reports and gives answers."""

    def __init__(
        self,
        hub: Hub,
        authenticator: Authenticator,
        is_leading: Callable[[], bool],
        secret: Callable[[], str] = lambda: "",
    ) -> None:
        """Pass reports to a hub; refuse all while another operator leads. `secret` is the operator's own."""
        self._hub = hub
        self._authenticator = authenticator
        self._is_leading = is_leading
        self._secret = secret
        self._refusals = RareLog(log, asyncio.get_running_loop().time)

    async def report(self, request: web.Request) -> web.Response:
        """Answer one report."""
        if not self._is_leading():
            refusal = _refuse(503, "another operator leads; ask again")
            refusal.force_close()  # the next connection leads to whoever is ready: the leader
            return refusal
        try:
            caller = await self._identify(request)
            report = HostReport.model_validate_json(await request.read(), extra="ignore")  # an agent may be newer
        except UnknownCallerError as error:
            self._refusals.warning("refused a caller", peer=request.remote, error=str(error))
            refusal = _refuse(401, str(error))
            refusal.force_close()  # a stranger keeps no connection
            return refusal
        except BusyError as error:
            return _refuse(429, f"cannot tell now who calls: {error}")
        except ClusterUnavailableError as error:
            self._hub.miss()
            return _refuse(503, f"cannot tell now who calls: {error}")
        except web.HTTPRequestEntityTooLarge:
            return _refuse(413, f"a report has at most {MAX_BODY_BYTES} bytes")
        except ValidationError as error:
            return _refuse(400, f"this is no report: {_describe(error)}")
        if (report.job_uid, report.pod_uid) != (caller.job_uid, caller.pod_uid):
            words = f"pod {caller.pod_uid} of job {caller.job_uid} cannot speak for another pod"
            self._refusals.warning("refused a report", peer=request.remote, error=words)
            return _refuse(403, words)
        if self._hub.seconds_away(caller.job_key):
            return _refuse(503, "a drill: this operator is away for the job")
        return await self._answer(caller, report)

    async def _answer(self, caller: Caller, report: HostReport) -> web.Response:
        """Pass on the report of a pod of the job; answer when there is news for that pod."""
        self._hub.receive(caller, report)
        answer = await self._hub.answer(caller, report.instance, HOLD_SECONDS)
        if answer is None or not self._is_leading():
            return _refuse(503, "the job has not been looked at yet; ask again")
        if answer.world or answer.shadow:  # a member of the job's world, not whoever is in its pods' namespace
            answer = answer.model_copy(update={"program_secret": derive_program_secret(self._secret(), caller)})
        return web.Response(text=answer.model_dump_json(by_alias=True), content_type="application/json")

    async def _identify(self, request: web.Request) -> Caller:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise UnknownCallerError("a report needs the header `Authorization: Bearer TOKEN`")
        caller = await self._authenticator.identify(token.strip(), request.remote or "")
        if prove := request.get(PROVE):
            prove(caller.pod_uid)
        return caller


def derive_program_secret(secret: str, caller: Caller) -> str:
    """Return the secret by which the hosts of a job know the compiled programs that they wrote; empty: there is none.

    A compiled program is code, and lies on storage that pods of other jobs may write. What proves it must not lie
    there, nor where people who may only view a namespace can read it: not in a ConfigMap, the status, or a variable of
    the pod. So it comes with the answer to a pod that has proved who it is, and that the status names as a member of a
    world.

    It is derived from a secret that the operator has in any case, the key of its certificates. So nothing is stored for
    a job, the operator needs no right on Secrets of other namespaces, and all operators before and after a restart give
    the same. When that key is renewed, programs are compiled again. Each job has its own, by UID: a job that takes over
    a folder loads no program of the former owner.
    """
    said = f"trainingjob.dev/compiled-programs\0{caller.namespace}\0{caller.job_uid}"
    return hmac.digest(secret.encode(), said.encode(), "sha256").hex() if secret else ""


def _refuse(status: int, words: str) -> web.Response:
    return web.json_response({"error": words}, status=status)


def _describe(error: ValidationError) -> str:
    """Return the first few problems of a body; never the body itself, nor a key of it that no field has."""
    problems = [
        f"{'.'.join(_name(part) for part in item['loc']) or 'body'}: {item['msg']}" for item in error.errors()[:5]
    ]
    return "; ".join(problems)


def _name(part: str | int) -> str:
    return str(part) if isinstance(part, int) or part in FIELDS else "KEY"
