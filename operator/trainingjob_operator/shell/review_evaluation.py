"""Evaluation of an AdmissionReview: a pure function from the request body to the response.

The evaluation is the expensive part of the webhook. It runs in a worker process, so arguments and results are small and
picklable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainingjob_api.problem import Problem, in_order, summarise
from trainingjob_api.spec.job import API_VERSION, GROUP, KIND, VERSION
from trainingjob_operator.core.manifests import Manifest, get_text, get_value
from trainingjob_operator.core.validation.validate_update import check_update, warn_of_update
from trainingjob_operator.shell.admission_review import (
    MAX_BYTES,
    MAX_DEPTH,
    TooDeepError,
    allow_response,
    deny_response,
    parse_review,
    scan_uid,
)

GENERATED_SUFFIX = "xxxxx"
"""Placeholder for the characters that the API server appends to `metadata.generateName`."""
SERVICE_ACCOUNT_PATH = "spec.runtime.serviceAccountName"
SUSPEND_PATH = "spec.suspend"
QUEUE_PATH = "spec.scheduling.queueName"
NAMESPACE_PATH = "metadata.namespace"


class CheckedSpec(Protocol):
    """Result of a job's check."""

    @property
    def problems(self) -> Sequence[Problem]:
        """Return the errors."""
        ...

    @property
    def warnings(self) -> Sequence[Problem]:
        """Return the warnings: allowed, but probably unintended."""
        ...


type Check = Callable[[Manifest], CheckedSpec]
"""Check a whole job. Each of its parts can be any JSON value."""


@dataclass(frozen=True)
class AccessCheck:
    """A required permission of a user on a ServiceAccount, and the response if the permission is missing."""

    user: Manifest
    namespace: str
    name: str
    refusal: Manifest


@dataclass(frozen=True)
class ReviewResult:
    """The response to a review, and what it depends on in the cluster."""

    answer: Manifest
    access_check: AccessCheck | None = None
    answer_without_kueue: Manifest | None = None
    """The response if Kueue is not installed. None: the job is rejected, or has no queue."""


def evaluate_review(body: bytes, check: Check, namespaces: Sequence[str] = ()) -> ReviewResult:
    """Evaluate the body of a review. The operator watches the given namespaces (empty: all).

    Raises:
        NotAReviewError: `body` is not an AdmissionReview.
    """
    if len(body) > MAX_BYTES:
        limit = f"{MAX_BYTES // 2**20} MiB"
        return ReviewResult(
            deny_response(
                scan_uid(body), 413, f"the request for this {KIND} must not be larger than {limit}. Shorten it."
            )
        )
    try:
        uid, request = parse_review(body)
    except TooDeepError:
        return ReviewResult(
            deny_response(scan_uid(body), 422, f"the {KIND} must not be nested more than {MAX_DEPTH} levels deep")
        )
    return _evaluate(uid, request, check, namespaces)


def _evaluate(uid: str, request: Manifest, check: Check, namespaces: Sequence[str]) -> ReviewResult:
    group, version, kind = (get_text(request, "kind", key) for key in ("group", "version", "kind"))
    if (group, kind) != (GROUP, KIND):
        requested = f"{kind or 'an unnamed kind'} of {group or 'no group'}"
        return ReviewResult(
            allow_response(uid, [f"{requested} was not checked: this webhook checks only {KIND} of {GROUP}"])
        )
    if version != VERSION:
        return ReviewResult(
            deny_response(uid, 422, f"this operator checks {KIND} of {API_VERSION}, not of {GROUP}/{version}")
        )
    operation, job, old = get_text(request, "operation"), get_value(request, "object"), get_value(request, "oldObject")
    if operation not in ("CREATE", "UPDATE") or (operation == "UPDATE" and _needs_no_check(job, old)):
        return ReviewResult(allow_response(uid))
    name = name_of(job, request)
    checked = check(_prepare(job, name))
    problems, warnings = [*checked.problems], [*checked.warnings]
    if operation == "UPDATE":
        if problems and _removes_problems(job, old, checked, lambda: check(_prepare(old, name))):
            problems, warnings = [], [*problems, *warnings]  # they are those of the stored job
        problems += check_update(old, job)
        warnings += warn_of_update(old, job)
    namespace = get_text(request, "namespace")
    if namespaces and namespace not in namespaces:
        _report_unwatched(namespace, namespaces, operation, problems, warnings)
    warning_texts = [str(warning) for warning in in_order(warnings)]

    def deny(*added: Problem) -> Manifest:
        return deny_response(uid, 422, summarise(name, in_order([*problems, *added])), warning_texts)

    answer = deny() if problems else allow_response(uid, warning_texts)
    queue = get_text(job, "spec", "scheduling", "queueName")
    without_kueue = None
    if queue and not problems:
        without_kueue = allow_response(uid, [*warning_texts, str(_missing_kueue(queue))])
    account = _find_new_account(job, old, checked.problems)
    if not account:
        return ReviewResult(answer, None, without_kueue)
    user = get_value(request, "userInfo")
    denial = deny(_missing_permission(get_text(user, "username"), namespace, account))
    access = AccessCheck(user if isinstance(user, dict) else {}, namespace, account, denial)
    return ReviewResult(answer, access, without_kueue)


def _report_unwatched(
    namespace: str, namespaces: Sequence[str], operation: str, problems: list[Problem], warnings: list[Problem]
) -> None:
    """Add that the operator does not manage a namespace: a problem of a new job, and a warning for a stored one."""
    if operation == "CREATE":
        problems.append(_unwatched_namespace(namespace, namespaces))
    else:  # the namespace was watched when the job was created
        warnings.append(_unwatched_job(namespace))


def _removes_problems(job: Any, old: Any, checked: CheckedSpec, check_old: Callable[[], CheckedSpec]) -> bool:
    """Return whether an update of an invalid job changes only `suspend`, or removes problems and adds none.

    A stored job becomes invalid with an upgrade, or without an accelerator. Its owner must be able to release its pods.
    An update to another ServiceAccount must be valid, since the permission for an invalid one is not checked.
    """
    spec, old_spec = (_without_suspend(manifest) for manifest in (job, old))
    if spec is None or old_spec is None:
        return False
    if spec == old_spec:
        return all(problem.path != SUSPEND_PATH for problem in checked.problems)
    accounts = {get_text(manifest, "spec", "runtime", "serviceAccountName") for manifest in (job, old)}
    if len(accounts) > 1:
        return False
    former = {str(problem) for problem in check_old().problems}
    return {str(problem) for problem in checked.problems} < former


def _without_suspend(job: Any) -> Manifest | None:  # None: it has no spec
    spec = get_value(job, "spec")
    return {key: value for key, value in spec.items() if key != "suspend"} if isinstance(spec, dict) else None


def _prepare(job: Any, name: str) -> Manifest:
    """Return a job with the name that it will have, and without what the API server and the operator write.

    Each validation of a suggestion copies the job, and a status is larger than most specs.
    """
    prepared = {key: value for key, value in job.items() if key != "status"} if isinstance(job, dict) else {}
    metadata = {} if prepared.get("metadata") is None else prepared["metadata"]
    if isinstance(metadata, dict):
        trimmed = {key: value for key, value in metadata.items() if key != "managedFields"}
        prepared["metadata"] = {**trimmed, "name": name}
    return prepared


def _find_new_account(job: Any, old: Any, problems: Sequence[Problem]) -> str:
    """Return the job's ServiceAccount if it is new or changed. Empty: unchanged, unset or invalid."""
    name, before = (get_text(manifest, "spec", "runtime", "serviceAccountName") for manifest in (job, old))
    is_invalid = any(problem.path in ("spec", SERVICE_ACCOUNT_PATH) for problem in problems)
    return "" if name == before or is_invalid else name


def _missing_permission(username: str, namespace: str, name: str) -> Problem:
    message = (
        f"'{username or 'the user'}' needs the right to `use` ServiceAccount '{name}' in namespace '{namespace}'. "
        "Ask for that right, or leave the field out: the pods then run as `default`."
    )
    return Problem(SERVICE_ACCOUNT_PATH, name, message)


def _unwatched_namespace(namespace: str, namespaces: Sequence[str]) -> Problem:
    message = (
        f"'{namespace}' must be one of the namespaces that the operator watches: {', '.join(namespaces)}. Create the "
        "job in one of them, or ask the administrator to add the namespace to the chart's `watch.namespaces`."
    )
    return Problem(NAMESPACE_PATH, namespace, message)


def _unwatched_job(namespace: str) -> Problem:
    message = (
        f"the update has no effect: the operator no longer watches namespace '{namespace}'. Ask the administrator to "
        "add it to the chart's `watch.namespaces`."
    )
    return Problem(NAMESPACE_PATH, namespace, message)


def _missing_kueue(queue: str) -> Problem:
    message = (
        f"'{queue}' has no effect: Kueue is not installed in this cluster. The pods start at once, without a quota."
    )
    return Problem(QUEUE_PATH, queue, message)


def _needs_no_check(job: Any, old: Any) -> bool:
    """Return whether an update does not change the spec, or the job is being deleted."""
    spec = get_value(job, "spec")
    is_same = isinstance(spec, dict) and spec == get_value(old, "spec")
    return is_same or get_value(job, "metadata", "deletionTimestamp") is not None


def name_of(job: Any, request: Manifest) -> str:
    """Return the name that the job has, or will have on creation."""
    name = get_text(job, "metadata", "name") or get_text(request, "name")
    return name or f"{get_text(job, 'metadata', 'generateName')}{GENERATED_SUFFIX}"
