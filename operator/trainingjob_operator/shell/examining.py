"""Evaluation of an AdmissionReview: a pure function from the request body to the response.

The evaluation is the expensive part of the webhook. It runs in a worker process, so arguments and results are small and
picklable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainingjob_api.job import API_VERSION, GROUP, KIND, VERSION
from trainingjob_api.problem import Problem, in_order, summarise
from trainingjob_operator.core.manifests import Manifest, dig, text
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

GENERATED = "xxxxx"
"""Placeholder for the characters that the API server appends to `metadata.generateName`."""
SERVICE_ACCOUNT_PATH = "spec.runtime.serviceAccountName"


class Checked(Protocol):
    """Result of a job's check."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Return the errors."""
        ...

    @property
    def warnings(self) -> Sequence[Problem]:
        """Return the warnings: allowed, but probably unintended."""
        ...


type Check = Callable[[Manifest], Checked]
"""Check a whole job. Each of its parts can be any JSON value."""


@dataclass(frozen=True)
class Question:
    """A required permission of a user on a ServiceAccount, and the response if the permission is missing."""

    user: Manifest
    namespace: str
    name: str
    refusal: Manifest


@dataclass(frozen=True)
class Examined:
    """The response to a review, and the permission that it requires."""

    answer: Manifest
    question: Question | None = None


def examine(body: bytes, check: Check) -> Examined:
    """Evaluate the body of a review.

    Raises:
        NotAReviewError: `body` is not an AdmissionReview.
    """
    if len(body) > MAX_BYTES:
        limit = f"{MAX_BYTES // 2**20} MiB"
        return Examined(
            refusal(find_uid(body), 413, f"the request about this {KIND} is larger than {limit}: shorten it")
        )
    try:
        uid, request = decode(body)
    except TooDeepError:
        return Examined(refusal(find_uid(body), 422, f"the {KIND} is nested more than {MAX_DEPTH} levels deep"))
    return _examine(uid, request, check)


def _examine(uid: str, request: Manifest, check: Check) -> Examined:
    group, version, kind = (text(request, "kind", key) for key in ("group", "version", "kind"))
    if (group, kind) != (GROUP, KIND):
        asked = f"{kind or 'a nameless kind'} of {group or 'no group'}"
        return Examined(allowance(uid, [f"asked about {asked}, knows only {KIND} of {GROUP}: nothing was checked"]))
    if version != VERSION:
        return Examined(refusal(uid, 422, f"this operator checks {KIND} of {API_VERSION}, not of {GROUP}/{version}"))
    operation, job, old = text(request, "operation"), dig(request, "object"), dig(request, "oldObject")
    if operation not in ("CREATE", "UPDATE") or (operation == "UPDATE" and _needs_no_check(job, old)):
        return Examined(allowance(uid))
    name = name_of(job, request)
    checked = check(_prepare(job, name))
    problems, warnings = [*checked.problems], [*checked.warnings]
    if operation == "UPDATE":
        problems += check_update(old, job)
        warnings += warn_of_update(old, job)
    told = [str(warning) for warning in in_order(warnings)]

    def refuse(*more: Problem) -> Manifest:
        return refusal(uid, 422, summarise(name, in_order([*problems, *more])), told)

    answer = refuse() if problems else allowance(uid, told)
    wanted = _find_account(job, old, checked.problems)
    if not wanted:
        return Examined(answer)
    user, namespace = dig(request, "userInfo"), text(request, "namespace")
    denied = refuse(_lack_of_right(text(user, "username"), namespace, wanted))
    return Examined(answer, Question(user if isinstance(user, dict) else {}, namespace, wanted, denied))


def _prepare(job: Any, name: str) -> Manifest:
    """Return a job with the name that it will have, and without what the API server and the operator write.

    Each validation of a suggestion copies the job, and a status is larger than most specs.
    """
    prepared = {key: value for key, value in job.items() if key != "status"} if isinstance(job, dict) else {}
    metadata = {} if prepared.get("metadata") is None else prepared["metadata"]
    if isinstance(metadata, dict):
        written = {key: value for key, value in metadata.items() if key != "managedFields"}
        prepared["metadata"] = {**written, "name": name}
    return prepared


def _find_account(job: Any, old: Any, problems: Sequence[Problem]) -> str:
    """Return the job's ServiceAccount if it is new or changed. Empty: unchanged, unset or invalid."""
    name, before = (text(each, "spec", "runtime", "serviceAccountName") for each in (job, old))
    is_no_name = any(problem.path in ("spec", SERVICE_ACCOUNT_PATH) for problem in problems)
    return "" if name == before or is_no_name else name


def _lack_of_right(username: str, namespace: str, name: str) -> Problem:
    message = (
        f"'{username or 'the user'}' needs the right to `use` ServiceAccount '{name}' in namespace '{namespace}'. "
        "Ask for that right, or leave the field out: the pods then run as `default`."
    )
    return Problem(SERVICE_ACCOUNT_PATH, name, message)


def _needs_no_check(job: Any, old: Any) -> bool:
    """Return whether an update does not change the spec, or the job is being deleted."""
    spec = dig(job, "spec")
    is_same = isinstance(spec, dict) and spec == dig(old, "spec")
    return is_same or dig(job, "metadata", "deletionTimestamp") is not None


def name_of(job: Any, request: Manifest) -> str:
    """Return the name that the job has, or will have on creation."""
    name = text(job, "metadata", "name") or text(request, "name")
    return name or f"{text(job, 'metadata', 'generateName')}{GENERATED}"
