"""A token proves a pod of a job, or nothing; a person may name a ServiceAccount only with the right to use it."""

from typing import Any

import pytest
from aiohttp import web

from trainingjob_api.job import KIND
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.shell.feed import KINDS
from trainingjob_operator.shell.identity import (
    ACCEPTED_SECONDS,
    MAX_TOKEN,
    REFUSED_SECONDS,
    PodAuthenticator,
    may_use_service_account,
)
from trainingjob_operator.shell.kinds import JOB, JOB_SET, POD
from trainingjob_operator.shell.ports import Caller, ClusterUnavailableError, UnknownCallerError
from trainingjob_operator.shell.store import Store

USER = "system:serviceaccount:research:default"


def owned_by(kind: str, name: str, uid: str, *, controller: bool = True) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": controller}]}


@pytest.fixture
def pod(api_server: Any) -> dict[str, Any]:
    """Put a pod of a job, with its owners; return it."""

    def put(kind: Any, name: str, owner: dict[str, Any]) -> dict[str, Any]:
        return api_server.put(kind, {"metadata": {"name": name, "namespace": "research", **owner}, "spec": {}})

    jobset = put(JOB_SET, "llama-base", owned_by(KIND, "llama", "job-uid"))
    job = put(JOB, "llama-base-slice-0", owned_by("JobSet", "llama-base", jobset["metadata"]["uid"]))
    return put(POD, "llama-base-slice-0-0", owned_by("Job", "llama-base-slice-0", job["metadata"]["uid"]))


def accept(api_server: Any, pod: dict[str, Any], **changes: Any) -> None:
    """Let the API server accept every token as this pod's, with some changes."""
    extra = {
        "authentication.kubernetes.io/pod-name": [pod["metadata"]["name"]],
        "authentication.kubernetes.io/pod-uid": [pod["metadata"]["uid"]],
    }
    status = {"authenticated": True, "audiences": [TOKEN_AUDIENCE], "user": {"username": USER, "extra": extra}}
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = status
        for parent in parents:
            target = target[parent]
        target[last] = value
    api_server.reviews["tokenreviews"] = lambda spec: status if spec["audiences"] == [TOKEN_AUDIENCE] else {}


@pytest.fixture
def store() -> Store:
    return Store(KINDS)


@pytest.fixture
def authenticator(api: Any, store: Store) -> PodAuthenticator:
    return PodAuthenticator(api, store)


async def test_a_pod_of_a_job_is_known(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)

    caller = await authenticator.identify("token")

    assert caller == Caller(pod["metadata"]["uid"], "research", "llama", "job-uid")


async def test_objects_that_are_known_are_not_read(
    authenticator: PodAuthenticator, api: Any, api_server: Any, store: Store, pod: Any
) -> None:
    for kind in (POD, JOB, JOB_SET):
        for (k, _, _), item in tuple(api_server.objects.items()):
            if k is kind:
                store.put(kind, item)
    accept(api_server, pod)

    await authenticator.identify("token")

    assert [request.split()[0] for request in api_server.requests] == ["POST"]


REFUSED = {
    "not authenticated": ({"authenticated": False, "error": "expired"}, "expired"),
    "no audience in the answer": ({"audiences": []}, "not valid for"),
    "another audience": ({"audiences": ["https://kubernetes.default.svc"]}, "not valid for"),
    "a person": ({"user__username": "alice"}, "no service account"),
    "bound to no pod": ({"user__extra": {}}, "bound to no pod"),
    "no extra at all": ({"user__extra": None}, "bound to no pod"),
    "another pod by that name": (
        {
            "user__extra": {
                "authentication.kubernetes.io/pod-name": ["llama-base-slice-0-0"],
                "authentication.kubernetes.io/pod-uid": ["old"],
            }
        },
        "is gone",
    ),
    "a pod of another namespace": ({"user__username": "system:serviceaccount:private:default"}, "is gone"),
}


@pytest.mark.parametrize(("changes", "want"), REFUSED.values(), ids=REFUSED.keys())
async def test_anybody_else_is_refused(
    changes: Any, want: str, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    accept(api_server, pod, **changes)

    with pytest.raises(UnknownCallerError, match=want):
        await authenticator.identify("token")


async def test_a_deleted_pod_is_refused(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)
    api_server.drop(POD, "research", pod["metadata"]["name"])

    with pytest.raises(UnknownCallerError, match="is gone"):
        await authenticator.identify("token")


NO_JOB = {
    "owned by nobody": {},
    "owned by a ReplicaSet": owned_by("ReplicaSet", "llama-base-slice-0", "uid-2"),
    "owned by a Job that is gone": owned_by("Job", "other", "uid-9"),
    "owned by a namesake of the Job": owned_by("Job", "llama-base-slice-0", "old"),
    "an owner that does not control it": owned_by("Job", "llama-base-slice-0", "uid-2", controller=False),
}


@pytest.mark.parametrize("owner", NO_JOB.values(), ids=NO_JOB.keys())
async def test_a_pod_of_no_job_is_refused(
    owner: Any, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    other = api_server.put(POD, {"metadata": {"name": "other", "namespace": "research", **owner}, "spec": {}})
    accept(api_server, other)

    with pytest.raises(UnknownCallerError, match=f"belongs to no {KIND}"):
        await authenticator.identify("token")


@pytest.mark.parametrize("token", ["", "x" * (MAX_TOKEN + 1)], ids=["none", "too long"])
async def test_no_token_is_not_worth_a_question(token: str, authenticator: PodAuthenticator, api_server: Any) -> None:
    with pytest.raises(UnknownCallerError, match="token is needed"):
        await authenticator.identify(token)

    assert api_server.requests == []


async def test_an_answer_is_good_for_a_while(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)
    await authenticator.identify("token")
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False}

    await authenticator.identify("token")
    with pytest.raises(UnknownCallerError):
        await authenticator.identify("another token")
    for digest, (until, answer) in tuple(authenticator._remembered.items()):
        authenticator._remembered[digest] = (until - ACCEPTED_SECONDS, answer)
    with pytest.raises(UnknownCallerError):
        await authenticator.identify("token")


async def test_a_refusal_is_good_for_a_little_while(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False}
    for _ in range(3):
        with pytest.raises(UnknownCallerError):
            await authenticator.identify("token")
    assert len(api_server.requests) == 1

    accept(api_server, pod)
    ((digest, (until, answer)),) = authenticator._remembered.items()
    authenticator._remembered[digest] = (until - REFUSED_SECONDS, answer)
    assert await authenticator.identify("token")


async def test_who_was_refused_for_an_old_token_is_known_at_once_by_the_next(
    authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False, "error": "token has expired"}
    with pytest.raises(UnknownCallerError, match="token has expired"):
        await authenticator.identify("old")

    accept(api_server, pod)

    assert await authenticator.identify("new")


async def test_a_pod_that_is_deleted_is_forgotten_with_the_answer_about_it(
    authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    accept(api_server, pod)
    await authenticator.identify("token")
    api_server.drop(POD, "research", pod["metadata"]["name"])

    assert await authenticator.identify("token"), "the API server itself takes a deleted pod's token for a minute more"
    for digest, (until, answer) in tuple(authenticator._remembered.items()):
        authenticator._remembered[digest] = (until - ACCEPTED_SECONDS, answer)
    with pytest.raises(UnknownCallerError, match="is gone"):
        await authenticator.identify("token")


async def test_no_token_is_kept(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)
    await authenticator.identify("very-secret")

    assert "very-secret" not in repr(vars(authenticator))


@pytest.mark.parametrize(
    "status",
    [500, 401, 403, 404],
    ids=["server error", "the operator's own token has expired", "no right to ask", "no such review"],
)
async def test_without_an_answer_nobody_is_refused_for_good(
    status: int, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    api_server.fault = lambda _: web.Response(status=status)
    with pytest.raises(ClusterUnavailableError):
        await authenticator.identify("token")

    api_server.fault = lambda _: None
    accept(api_server, pod)
    assert await authenticator.identify("token")


ANSWERS = {"allowed": ({"allowed": True}, True), "denied": ({"allowed": False}, False), "nothing": ({}, False)}


@pytest.mark.parametrize(("status", "want"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_the_right_to_use_a_service_account(status: Any, want: bool, api: Any, api_server: Any) -> None:
    asked = []
    api_server.reviews["subjectaccessreviews"] = lambda spec: asked.append(spec) or status
    user = {"username": "alice", "uid": "u", "groups": ["dev"], "extra": {"scopes": ["a"]}}

    assert await may_use_service_account(api, user, "research", "trainer") is want
    assert asked == [
        {
            "user": "alice",
            "uid": "u",
            "groups": ["dev"],
            "extra": {"scopes": ["a"]},
            "resourceAttributes": {
                "namespace": "research",
                "verb": "use",
                "resource": "serviceaccounts",
                "name": "trainer",
            },
        }
    ]
