"""What the webhook answers: an AdmissionReview in, an AdmissionReview out.

A job is refused with all that is wrong with it, in the words that the condition and the command line use too. What the
webhook was not asked for it lets pass: it must never stand in the way of anybody else's objects, of deletion, or of a
change that leaves the spec as it is.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from trainingjob_api.job import API_VERSION, GROUP, KIND, VERSION
from trainingjob_api.problem import Problem, in_order, summarise
from trainingjob_operator.core.manifests import Manifest, dig, text
from trainingjob_operator.core.validation.validate_metadata import check_fields, check_metadata, warn_of_marks
from trainingjob_operator.core.validation.validate_update import check_update, warn_of_update
from trainingjob_operator.shell.admission_review import (
    MAX_BYTES,
    MAX_DEPTH,
    TooDeepError,
    allowance,
    decode,
    find_uid,
    refusal,
)
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import ClusterUnavailableError

GENERATED = "xxxxx"
"""Stands for the characters that the API server appends to `metadata.generateName`."""
SERVICE_ACCOUNT_PATH = "spec.runtime.serviceAccountName"

log = Log("webhook")


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
            limit = f"{MAX_BYTES // 2**20} MiB"
            return refusal(find_uid(body), 413, f"the request about this {KIND} is larger than {limit}: shorten it")
        try:
            uid, request = decode(body)
        except TooDeepError:
            return refusal(find_uid(body), 422, f"the {KIND} is nested more than {MAX_DEPTH} levels deep")
        try:
            return await self._answer(uid, request)
        except ClusterUnavailableError as error:
            log.warning("cannot review now", error=str(error))
            return refusal(uid, 503, f"the operator cannot reach the API server to check this: try again ({error})")
        except Exception:
            log.exception("review broke", name=text(request, "name"), namespace=text(request, "namespace"))
            return refusal(uid, 500, f"the operator failed to check this {KIND}; its log says why")

    async def _answer(self, uid: str, request: Manifest) -> Manifest:
        group, version, kind = (text(request, "kind", key) for key in ("group", "version", "kind"))
        if (group, kind) != (GROUP, KIND):
            asked = f"{kind or 'a nameless kind'} of {group or 'no group'}"
            return allowance(uid, [f"asked about {asked}, knows only {KIND} of {GROUP}: nothing was checked"])
        if version != VERSION:
            return refusal(uid, 422, f"this operator checks {KIND} of {API_VERSION}, not of {GROUP}/{version}")
        operation, job, old = text(request, "operation"), dig(request, "object"), dig(request, "oldObject")
        if operation not in ("CREATE", "UPDATE") or (operation == "UPDATE" and _needs_no_check(job, old)):
            return allowance(uid)
        name = name_of(job, request)
        checked = self._check(name, dig(job, "spec"))
        problems = [*checked.problems, *await self._check_service_account(request, job, old, checked.problems)]
        warnings = [*checked.warnings, *warn_of_marks(job)]
        problems += [*check_fields(job), *check_metadata(job)]
        if operation == "UPDATE":
            problems += check_update(old, job)
            warnings += warn_of_update(old, job)
        told = [str(warning) for warning in in_order(warnings)]
        return refusal(uid, 422, summarise(name, in_order(problems)), told) if problems else allowance(uid, told)

    async def _check_service_account(
        self, request: Manifest, job: Any, old: Any, problems: Sequence[Problem]
    ) -> list[Problem]:
        """Return a problem where the job names a ServiceAccount anew and its creator may not use that."""
        name, before = (text(each, "spec", "runtime", "serviceAccountName") for each in (job, old))
        is_no_name = any(problem.path in ("spec", SERVICE_ACCOUNT_PATH) for problem in problems)
        if not name or name == before or is_no_name:
            return []
        user, namespace = dig(request, "userInfo"), text(request, "namespace")
        if await self._may_use(user if isinstance(user, dict) else {}, namespace, name):
            return []
        who = text(user, "username") or "the user"
        message = (
            f"'{who}' needs the right to `use` ServiceAccount '{name}' in namespace '{namespace}'. "
            "Ask for that right, or leave the field out: the pods then run as `default`."
        )
        return [Problem(SERVICE_ACCOUNT_PATH, name, message)]


def _needs_no_check(job: Any, old: Any) -> bool:
    """Return whether an update leaves the spec as it is, or is one of a job on its way out."""
    spec = dig(job, "spec")
    is_same = isinstance(spec, dict) and spec == dig(old, "spec")
    return is_same or dig(job, "metadata", "deletionTimestamp") is not None


def name_of(job: Any, request: Manifest) -> str:
    """Return the name that a job has or will have."""
    name = text(job, "metadata", "name") or text(request, "name")
    return name or f"{text(job, 'metadata', 'generateName')}{GENERATED}"
