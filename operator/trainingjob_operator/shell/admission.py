"""What the webhook answers: an AdmissionReview in, an AdmissionReview out.

A job is refused with all that is wrong with it, in the words that the condition and the command line use too. What the
webhook was not asked for it lets pass: it must never stand in the way of anybody else's objects, of deletion, or of a
change that leaves the spec as it is.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from trainingjob_api.job import KIND
from trainingjob_api.problem import Problem, summarise
from trainingjob_operator.core.manifests import Manifest, dig, text
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import ClusterUnavailableError

API_VERSION = "admission.k8s.io/v1"
MAX_BYTES = 4 * 1024 * 1024
MAX_MESSAGE = 16 * 1024
MAX_WARNING = 256
"""Longer warnings are cut by the API server, all of them together at 4 KiB."""
GENERATED = "xxxxx"
"""Stands for the characters that the API server appends to `metadata.generateName`."""
SERVICE_ACCOUNT_PATH = "spec.runtime.serviceAccountName"

_UID = re.compile(rb'"uid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_HEAD_BYTES = 64 * 1024

log = Log("webhook")


class NotAReviewError(Exception):
    """The request is no AdmissionReview that can be answered. The text says why."""


class Checked(Protocol):
    """What a check of a job found."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Return what is wrong."""
        ...

    @property
    def warnings(self) -> Sequence[Problem]:
        """Return what is allowed, and probably not meant."""
        ...


type Check = Callable[[str, Any], Checked]
"""Check the spec of a job by its name and its raw spec, whatever that is."""
type MayUse = Callable[[Manifest, str, str], Awaitable[bool]]
"""Whether a user may use the ServiceAccount of a namespace and a name."""


class Admission:
    """Answers reviews of TrainingJobs."""

    def __init__(self, check: Check, may_use: MayUse) -> None:
        """Check specs by one function and the right to a ServiceAccount by another."""
        self._check = check
        self._may_use = may_use

    async def answer(self, body: bytes) -> Manifest:
        """Return the AdmissionReview that answers one.

        Raises:
            NotAReviewError: `body` is none.
        """
        if len(body) > MAX_BYTES:
            return refusal(find_uid(body), 413, f"the {KIND} is larger than {MAX_BYTES // 2**20} MiB: shorten it")
        try:
            review = json.loads(body)
        except (ValueError, RecursionError) as error:
            why = "is nested too deeply" if isinstance(error, RecursionError) else f"is not JSON: {error}"
            raise NotAReviewError(f"the body {why}") from error
        request = dig(review, "request")
        uid = text(request, "uid")
        if text(review, "kind") != "AdmissionReview" or text(review, "apiVersion") != API_VERSION or not uid:
            raise NotAReviewError(f"the body is no AdmissionReview of {API_VERSION} with a request and its uid")
        try:
            return await self._answer(uid, request)
        except ClusterUnavailableError as error:
            log.warning("cannot review now", error=str(error))
            return refusal(uid, 503, f"the operator cannot reach the API server to check this: try again ({error})")
        except Exception:
            log.exception("review broke", name=text(request, "name"), namespace=text(request, "namespace"))
            return refusal(uid, 500, f"the operator failed to check this {KIND}; its log says why")

    async def _answer(self, uid: str, request: Manifest) -> Manifest:
        kind = text(request, "kind", "kind")
        if kind != KIND:
            return allowance(uid, [f"asked about a {kind or 'nameless kind'}, knows only {KIND}: nothing was checked"])
        job, old = dig(request, "object"), dig(request, "oldObject")
        is_leaving = dig(job, "metadata", "deletionTimestamp") is not None
        is_same = text(request, "operation") == "UPDATE" and dig(job, "spec") == dig(old, "spec")
        if text(request, "operation") not in ("CREATE", "UPDATE") or is_leaving or is_same:
            return allowance(uid)
        name = name_of(job, request)
        checked = self._check(name, dig(job, "spec"))
        problems = [*checked.problems, *await self._check_service_account(request, job, old)]
        if problems:
            return refusal(uid, 422, summarise(name, problems))
        return allowance(uid, [str(warning) for warning in checked.warnings])

    async def _check_service_account(self, request: Manifest, job: Manifest, old: Manifest | None) -> list[Problem]:
        """Return a problem where the job names a ServiceAccount anew and its creator may not use that."""
        name, before = (text(each, "spec", "runtime", "serviceAccountName") for each in (job, old))
        if not name or name == before:
            return []
        user, namespace = dig(request, "userInfo") or {}, text(request, "namespace")
        if await self._may_use(user, namespace, name):
            return []
        who = text(user, "username") or "the user"
        message = (
            f"'{who}' needs the right to `use` ServiceAccount '{name}' in namespace '{namespace}'. "
            "Ask for that right, or leave the field out: the pods then run as `default`."
        )
        return [Problem(SERVICE_ACCOUNT_PATH, name, message)]


def name_of(job: Any, request: Manifest) -> str:
    """Return the name that a job has or will have."""
    name = text(job, "metadata", "name") or text(request, "name")
    return name or f"{text(job, 'metadata', 'generateName')}{GENERATED}"


def allowance(uid: str, warnings: Sequence[str] = ()) -> Manifest:
    """Return the review that lets an object in, with warnings for whoever sent it."""
    response: Manifest = {"uid": uid, "allowed": True}
    if warnings:
        response["warnings"] = [warning[:MAX_WARNING] for warning in warnings]
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def refusal(uid: str, code: int, message: str) -> Manifest:
    """Return the review that refuses an object."""
    reason = {413: "RequestEntityTooLarge", 422: "Invalid", 503: "ServiceUnavailable"}.get(code, "InternalError")
    cut = message.encode()[:MAX_MESSAGE].decode(errors="ignore")
    status = {"code": code, "reason": reason, "message": cut}
    response = {"uid": uid, "allowed": False, "status": status}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def find_uid(body: bytes) -> str:
    """Return the UID of a review that is too large to parse: API servers write it first.

    Raises:
        NotAReviewError: there is none near the beginning.
    """
    match = _UID.search(body[:_HEAD_BYTES])
    if match is None:
        raise NotAReviewError(f"the body is larger than {MAX_BYTES} bytes and names no uid near its beginning")
    return match[1].decode()
