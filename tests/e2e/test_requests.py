"""The audit of the operator's API requests: each rule has a request that violates it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.api_audit import MAX_STATUSES_PER_WINDOW, find_forbidden_requests, parse
from e2e.cluster import audit
from trainingjob_operator.core.names import CA_CONFIG_MAP

OWN = "trainingjob-system"
BEGUN = datetime(2026, 11, 21, 12, tzinfo=UTC)
OWNED = {"ownerReferences": [{"uid": "u", "controller": True}]}
type Event = dict[str, Any]


def event(verb: str, resource: str, body: Any = None, *, code: int = 200, after: float = 0.0, **more: Any) -> Event:
    """Return an audit event about the object `x` in namespace `n`."""
    name, _, subresource = resource.partition("/")
    about = {"resource": name, "namespace": "n", "name": "x"} | ({"subresource": subresource} if subresource else {})
    at = (BEGUN + timedelta(seconds=after)).isoformat()
    about |= {key: more.pop(key) for key in ("namespace",) if key in more}
    requested = {} if body is None else {"requestObject": body}
    status = {"code": code, **more}
    return {"verb": verb, "objectRef": about, "responseStatus": status, "requestReceivedTimestamp": at, **requested}


def status(after: float = 0.0, *, uid: str = "u", version: str = "7", total: int = 0) -> Event:
    """Return the writing of a status with a number of restarts."""
    time = BEGUN.isoformat()
    attempts = [
        {"generation": number, "slices": 1, "started": time, "ended": time, "restarted": True}
        for number in range(1, total + 1)
    ]
    body = {
        "metadata": {"uid": uid, "resourceVersion": version},
        "status": {"restarts": {"total": total, "counted": 0, "sinceCommit": 0}, "attempts": attempts},
    }
    return event("update", "trainingjobs/status", body, after=after)


NO_RIGHT: dict[str, Any] = {"code": 403, "namespace": OWN, "message": 'User "x" cannot get resource "leases"'}
CREATED = event("create", "jobsets", {"metadata": {"name": "x", **OWNED}}, code=201)
CERTIFICATES = event("patch", "configmaps", {"metadata": {}})
CERTIFICATES["objectRef"]["name"] = CA_CONFIG_MAP
DELETED = event("delete", "jobsets", {"preconditions": {"uid": "u"}})
CASES: dict[str, tuple[list[Event], list[str]]] = {
    "a calm life": ([CREATED, status(), status(1, total=1), DELETED, CREATED], []),
    "an object that is gone, a conflict and a server that fails": (
        [
            event("get", "trainingjobs", code=404),
            event("update", "leases", code=409, namespace=OWN),
            event("list", "pods", code=503),
        ],
        [],
    ),
    "what is of no object": ([{**event("get", "x"), "objectRef": {}}], []),
    "a JSON patch": ([event("patch", "validatingwebhookconfigurations", [{"op": "add"}])], []),
    "a JobSet that is changed": (
        [event("update", "jobsets", {"metadata": OWNED})],
        ["nothing needs this: 12:00:00 update jobsets n/x: 200 "],
    ),
    "a resource that is none of its business": (
        [event("list", "deployments")],
        ["nothing needs this: 12:00:00 list deployments n/x: 200 "],
    ),
    "a Secret of somebody": ([event("get", "secrets")], ["in another namespace: 12:00:00 get secrets n/x: 200 "]),
    "an invalid object": (
        [event("create", "jobsets", {"metadata": OWNED}, code=422, message="bad")],
        ["refused: 12:00:00 create jobsets n/x: 422 bad"],
    ),
    "no right": ([event("delete", "pods", DELETED["requestObject"], code=403)], ["refused: "]),
    "no right until an API server that starts has read its roles": (
        [event("get", "leases", **NO_RIGHT), event("get", "leases", after=2, namespace=OWN)],
        [],
    ),
    "a right that comes too late": (
        [event("get", "leases", **NO_RIGHT), event("get", "leases", after=10, namespace=OWN)],
        ["refused: "],
    ),
    "the right to something else": (
        [
            event("get", "leases", **NO_RIGHT),
            event("update", "leases", after=1, namespace=OWN),
            event("get", "leases", after=2, **NO_RIGHT),
        ],
        ["refused: ", "refused: "],
    ),
    "an object that a policy refuses, then one that it takes": (
        [
            event("create", "jobsets", {"metadata": OWNED}, code=403, message="x is forbidden: exceeded quota"),
            event("create", "jobsets", {"metadata": OWNED}, code=201),
        ],
        ["refused: "],
    ),
    "a namespace that goes": (
        [event("create", "jobsets", {"metadata": OWNED}, code=403, message="namespace n is being terminated")],
        [],
    ),
    "deleted whoever has the name": ([event("delete", "pods", {})], ["deleted by its name alone: "]),
    "a status over another": ([status(version="")], ["written over whatever is there: "]),
    "a child without a job": ([event("create", "jobsets", {"metadata": {}}, code=201)], ["created without an owner: "]),
    "a preparation": ([event("create", "jobs", {"metadata": {"name": "x", **OWNED}}, code=201)], []),
    "a preparation without a job": (
        [event("create", "jobs", {"metadata": {}}, code=201)],
        ["created without an owner: "],
    ),
    "a preparation made twice": (
        [event("create", "jobs", {"metadata": {"name": "x", **OWNED}}, code=201)] * 2,
        ["jobs/n/x was created 2 times, and deleted 0 times"],
    ),
    "a dry run of `helm test`": (
        [
            event("create", "trainingjobs", {"metadata": {}})
            | {"user": {"username": "system:serviceaccount:n:trainingjob-operator-test"}}
        ],
        [],
    ),
    "a job that the operator creates": ([event("create", "trainingjobs", {"metadata": {}})], ["nothing needs this: "]),
    "a policy without a job": ([event("patch", "networkpolicies", {"metadata": {}})], ["created without an owner: "]),
    "a configuration without a job": (
        [event("create", "configmaps", {"metadata": {}})],
        ["created without an owner: "],
    ),
    "a configuration that changes": (
        [event("patch", "configmaps", {"metadata": OWNED})],
        ["changed in place: "],
    ),
    "the certificates of a namespace": ([CERTIFICATES], []),
    "made twice": ([CREATED, CREATED], ["jobsets/n/x was created 2 times, and deleted 0 times"]),
    "made again where it was refused": ([CREATED, {**CREATED, "responseStatus": {"code": 409}}], []),
    "restarts that become fewer": (
        [status(total=2), status(1, total=1)],
        ["12:00:01 update trainingjobs/status n/x: 200 : 2 restarts became 1"],
    ),
    "a namesake that begins anew": ([status(total=2), status(1, uid="v", total=1)], []),
    "statuses without end": (
        [status(number * 0.1) for number in range(MAX_STATUSES_PER_WINDOW + 1)],
        ["n/x: 26 statuses in 0:00:02.500000 from 2026-11-21 12:00:00+00:00"],
    ),
    "as many statuses, at their pace": ([status(number * 0.5) for number in range(3 * MAX_STATUSES_PER_WINDOW)], []),
}


@pytest.mark.parametrize(("events", "want"), CASES.values(), ids=CASES.keys())
def test_forbidden_requests_of_an_operator(events: list[Event], want: list[str]) -> None:
    reported = list(find_forbidden_requests(events, OWN))

    assert len(reported) == len(want), reported
    assert all(one.startswith(begin) for one, begin in zip(reported, want, strict=True)), reported


def test_no_body_with_a_token_or_a_secret_is_recorded() -> None:
    rules = audit.policy()["rules"]
    bodies = next(number for number, rule in enumerate(rules) if rule["level"] == "Request")

    assert [rule["level"] for rule in rules] == ["Metadata", "Request", "Metadata", "None"]
    named = {name for rule in rules[:bodies] for group in rule["resources"] for name in group["resources"]}
    assert named == {"secrets", "tokenreviews"}


def test_requests_are_read_from_a_time_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "audit.log"
    monkeypatch.setattr(audit, "LOG", log)
    assert audit.read(BEGUN) == []
    log.write_text(
        '{"stageTimestamp": "2026-11-21T11:59:59.9Z"}\n{"stageTimestamp": "2026-11-21T12:00:00.000001Z"}\n{"stageT'
    )

    assert [one["stageTimestamp"] for one in audit.read(BEGUN)] == ["2026-11-21T12:00:00.000001Z"]


def test_request_names_the_pod_that_made_it() -> None:
    """With two operators, the pod's name says which of them wrote."""
    extra = {"authentication.kubernetes.io/pod-name": ["operator-1"]}

    assert parse(event("update", "leases") | {"user": {"extra": extra}}).pod == "operator-1"
    assert parse(event("update", "leases")).pod == ""
