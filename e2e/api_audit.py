"""Check of the operator's requests to the API server against a model of all allowed requests.

The source is the API server's audit log. It holds every answered request in order of effect, also with two operators,
and with an operator that was killed or restarted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from e2e.soak.invariants import find_impossible_states
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.names import CA_CONFIG_MAP

type Manifest = dict[str, Any]
type Target = tuple[str, str, str]
"""Resource, namespace and name of an object."""

POD_NAME = "authentication.kubernetes.io/pod-name"
"""Key under which the API server records the pod of a ServiceAccount token."""
READS = ("get", "list", "watch")
STATUS = "trainingjobs/status"
ALLOWED_VERBS: dict[str, tuple[str, ...]] = {
    "trainingjobs": (*READS, "delete"),  # after `ttlSecondsAfterFinished`
    STATUS: ("update",),
    "jobsets": (*READS, "create", "delete"),
    "jobs": (*READS, "create", "delete"),  # the pods of `data.prepare`
    "pods": (*READS, "delete", "patch"),  # patch: the label of the leader
    "configmaps": (*READS, "create", "patch"),  # patch: `CA_CONFIG_MAP` alone
    "networkpolicies": ("patch",),
    "podgroups": ("create",),  # where the API server serves them
    "events": ("list", "create", "patch"),
    "nodes": READS,
    "workloads": ("list",),  # of Kueue, while it suspends a JobSet
    "localqueues": ("get",),  # of Kueue, for jobs with a queue
    "clusterqueues": ("get",),
    "admissionchecks": ("get",),
    "leases": (*READS, "create", "update"),
    "secrets": ("get", "update"),
    "validatingwebhookconfigurations": ("get", "patch"),
    "tokenreviews": ("create",),  # of agents, and of scrapers
    "subjectaccessreviews": ("create",),  # of creators of jobs, and of scrapers
}
"""The verbs that the operator uses, by resource. The check exposes rights that the chart grants without need."""
CREATED_ONCE = ("jobsets", "jobs", "configmaps")
"""Resources of which each object is created once, and again only after it was deleted."""
OWN_NAMESPACE_RESOURCES = ("secrets", "leases")
"""Resources that the operator uses only in its own namespace."""
OWN_NAMESPACE_REQUESTS = (("pods", "patch"),)
"""Resources and verbs that the operator uses only in its own namespace."""
FORBIDDEN_CODES = frozenset((400, 401, 403, 405, 406, 413, 415, 422))
"""Status codes of requests that the operator must not make."""
STARTUP_GRACE = timedelta(seconds=10)
"""Time after its start during which the API server may not know all roles yet, and refuse allowed requests."""
WINDOW = timedelta(seconds=10)
MAX_STATUSES_PER_WINDOW = 25
"""Maximum number of status writes of one job in a window. Each is a transition or the periodic update of numbers."""


@dataclass(frozen=True)
class Request:
    """One answered request. `resource` includes the subresource after a slash; empty: not about an object."""

    at: datetime
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    message: str
    """The server's message, if it refused the request."""
    body: Manifest
    pod: str = ""
    """Pod whose token authenticated the request. Empty: unknown."""

    @property
    def target(self) -> Target:
        """Return the object of the request."""
        return self.resource, self.namespace, self.name

    @property
    def is_successful(self) -> bool:
        """Return whether the server carried out the request."""
        return 200 <= self.code < 300

    @property
    def is_denied_by_rbac(self) -> bool:
        """Return whether RBAC refused the request. Other refusals concern its content."""
        return self.code == 403 and f"cannot {self.verb} resource" in self.message

    def __str__(self) -> str:
        """Return a readable form."""
        return (
            f"{self.at:%H:%M:%S} {self.verb} {self.resource} {self.namespace}/{self.name}: {self.code} {self.message}"
        )


def parse(event: Manifest) -> Request:
    """Return the request of an audit event."""
    about, status = event.get("objectRef", {}), event.get("responseStatus", {})
    requested = event.get("requestObject")
    body: Manifest = requested if isinstance(requested, dict) else {}  # a JSON patch is a list
    resource, subresource = about.get("resource", ""), about.get("subresource", "")
    pods = event.get("user", {}).get("extra", {}).get(POD_NAME, [])
    return Request(
        at=datetime.fromisoformat(event["requestReceivedTimestamp"]),
        verb=event["verb"],
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=about.get("namespace", ""),
        name=about.get("name") or body.get("metadata", {}).get("name", ""),
        code=status.get("code", 0),
        message=status.get("message", ""),
        body=body,
        pod=pods[0] if pods else "",
    )


def find_forbidden_requests(events: Iterable[Manifest], own_namespace: str) -> Iterator[str]:
    """Yield the forbidden requests among audit events in order. The operator's namespace is `own_namespace`."""
    requests = [parse(event) for event in events if not _is_of_helm_test(event)]
    for request in requests:
        if not _is_startup_denial(request, requests):
            yield from _find_disallowed(request, own_namespace)
        yield from _find_unguarded_writes(request)
    yield from _find_duplicate_creates(requests)
    statuses = [request for request in requests if request.resource == STATUS and request.is_successful]
    for target in dict.fromkeys(request.target for request in statuses):
        written = [request for request in statuses if request.target == target]
        yield from _find_contradictions(written)
        yield from _find_excessive_writes(written)


def _is_of_helm_test(event: Manifest) -> bool:
    """Return whether `helm test` made a request, with an account that exists only while it runs."""
    return str(event.get("user", {}).get("username", "")).endswith(":trainingjob-operator-test")


def _is_startup_denial(request: Request, requests: Sequence[Request]) -> bool:
    """Return whether RBAC refused a request only briefly, because the API server was starting."""
    return request.is_denied_by_rbac and any(
        (other.verb, other.resource, other.namespace) == (request.verb, request.resource, request.namespace)
        for other in requests
        if other.code != 403 and timedelta() < other.at - request.at < STARTUP_GRACE
    )


def _find_disallowed(request: Request, own_namespace: str) -> Iterator[str]:
    if request.resource and request.verb not in ALLOWED_VERBS.get(request.resource, ()):
        yield f"nothing needs this: {request}"
    is_own = request.resource in OWN_NAMESPACE_RESOURCES or (request.resource, request.verb) in OWN_NAMESPACE_REQUESTS
    if is_own and request.namespace != own_namespace:
        yield f"in another namespace: {request}"
    if (
        request.code in FORBIDDEN_CODES and "being terminated" not in request.message
    ):  # the namespace may be deleted at any moment
        yield f"refused: {request}"
    if (request.resource, request.verb) == ("configmaps", "patch") and request.name != CA_CONFIG_MAP:
        yield f"changed in place: {request}"


def _find_unguarded_writes(request: Request) -> Iterator[str]:
    """Yield writes that could have affected another object than the intended one."""
    metadata = request.body.get("metadata", {})
    if request.verb == "delete" and not request.body.get("preconditions", {}).get("uid"):
        yield f"deleted by its name alone: {request}"
    if request.resource == STATUS and not metadata.get("resourceVersion"):
        yield f"written over whatever is there: {request}"
    is_of_job = request.resource in (*CREATED_ONCE, "networkpolicies", "podgroups")
    makes = is_of_job and request.verb in ("create", "patch") and request.name != CA_CONFIG_MAP
    if makes and not any(owner.get("uid") and owner.get("controller") for owner in metadata.get("ownerReferences", [])):
        yield f"created without an owner: {request}"


def _find_duplicate_creates(requests: Sequence[Request]) -> Iterator[str]:
    """Yield JobSets, Jobs and ConfigMaps that were created more often than deletions allow."""
    created = Counter(
        request.target
        for request in requests
        if request.resource in CREATED_ONCE and request.verb == "create" and request.is_successful
    )
    deleted = Counter(request.target for request in requests if request.verb == "delete" and request.is_successful)
    for target, times in created.items():
        if times > 1 + deleted[target]:
            yield f"{'/'.join(target)} was created {times} times, and deleted {deleted[target]} times"


def _find_contradictions(written: Sequence[Request]) -> Iterator[str]:
    """Yield impossible sequences of one job's statuses. A later job of the same name is another job."""
    before: tuple[str, TrainingJobStatus] | None = None
    for request in written:
        uid = request.body["metadata"]["uid"]
        status = TrainingJobStatus.model_validate(request.body.get("status") or {})
        if before and before[0] == uid:
            for wrong in find_impossible_states(before[1], status):
                yield f"{request}: {wrong}"
        before = uid, status


def _find_excessive_writes(written: Sequence[Request]) -> Iterator[str]:
    """Yield a job whose status was written too often."""
    times = [request.at for request in written]
    for first, last in zip(times, times[MAX_STATUSES_PER_WINDOW:], strict=False):
        if last - first < WINDOW:
            job = f"{written[0].namespace}/{written[0].name}"
            yield f"{job}: {MAX_STATUSES_PER_WINDOW + 1} statuses in {last - first} from {first}"
            return
