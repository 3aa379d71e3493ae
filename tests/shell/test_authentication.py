"""A token proves a pod of a job, or nothing; a person may name a ServiceAccount only with the right to use it."""

from typing import Any

import pytest
from aiohttp import web

from tests.support.tokens import make_token
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_api.spec.job import GROUP, KIND
from trainingjob_operator.shell import reviews
from trainingjob_operator.shell.authentication import (
    ACCEPTED_CACHE_SECONDS,
    REJECTED_CACHE_SECONDS,
    PodAuthenticator,
    may_use_service_account,
)
from trainingjob_operator.shell.check_pool import FairQueue
from trainingjob_operator.shell.interfaces import Caller, ClusterUnavailableError, UnauthenticatedCallerError
from trainingjob_operator.shell.kinds import JOB, JOB_SET, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.reviews import MAX_TOKEN
from trainingjob_operator.shell.store import Store

TOKEN = make_token()
USER = "system:serviceaccount:research:default"


def owned_by(kind: Kind, name: str, uid: str, *, controller: bool = True, version: str = "") -> dict[str, Any]:
    owner = {"apiVersion": version or kind.api_version, "kind": kind.name, "name": name, "uid": uid}
    return {"ownerReferences": [{**owner, "controller": controller}]}


def put(api_server: Any, kind: Kind, name: str, owner: dict[str, Any], namespace: str = "research") -> dict[str, Any]:
    stored = api_server.put(kind, {"metadata": {"name": name, "namespace": namespace, **owner}, "spec": {}})
    assert isinstance(stored, dict)
    return stored


def make_chain(
    api_server: Any,
    name: str,
    links: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {}),
    *,
    owner: tuple[str, str],
    namespace: str = "research",
) -> dict[str, Any]:
    """Put a JobSet that names a TrainingJob as its owner, with its Job and its pod; return the pod.

    `links` change the references to the TrainingJob, the JobSet and the Job.
    """
    of_jobset, of_job, of_pod = (
        owned_by(TRAINING_JOB, *owner),
        owned_by(JOB_SET, f"{name}-base", ""),
        owned_by(JOB, f"{name}-base-slice-0", ""),
    )
    of_jobset["ownerReferences"][0] |= links[0]
    jobset = put(api_server, JOB_SET, f"{name}-base", of_jobset, namespace)
    of_job["ownerReferences"][0] |= {"uid": jobset["metadata"]["uid"], **links[1]}
    job = put(api_server, JOB, f"{name}-base-slice-0", of_job, namespace)
    of_pod["ownerReferences"][0] |= {"uid": job["metadata"]["uid"], **links[2]}
    return put(api_server, POD, f"{name}-base-slice-0-0", of_pod, namespace)


@pytest.fixture
def pod(api_server: Any) -> dict[str, Any]:
    """Put a pod of a job, with its owners; return it."""
    put(api_server, TRAINING_JOB, "llama", {"uid": "job-uid"})
    return make_chain(api_server, "llama", owner=("llama", "job-uid"))


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


async def test_a_pod_of_a_job_is_known(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)

    caller = await authenticator.authenticate(TOKEN)

    assert caller == Caller(pod["metadata"]["uid"], "research", "llama", "job-uid")


async def test_a_known_token_is_not_decoded_again(
    authenticator: PodAuthenticator, api_server: Any, pod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(api_server, pod)
    caller = await authenticator.authenticate(TOKEN)
    monkeypatch.setattr("trainingjob_operator.shell.authentication.has_operator_audience", lambda token: False)

    assert await authenticator.authenticate(TOKEN) == caller
    with pytest.raises(UnauthenticatedCallerError, match="is not a JSON web token for"):
        await authenticator.authenticate(TOKEN + "x")


async def test_objects_that_are_known_are_not_read(
    authenticator: PodAuthenticator, api: Any, api_server: Any, store: Store, pod: Any
) -> None:
    for kind in (POD, JOB, JOB_SET, TRAINING_JOB):
        for (k, _, _), item in tuple(api_server.objects.items()):
            if k is kind:
                store.put(kind, item)
    accept(api_server, pod)

    await authenticator.authenticate(TOKEN)

    assert [request.split()[0] for request in api_server.requests] == ["POST"]


REFUSED = {
    "not authenticated": ({"authenticated": False, "error": "expired"}, "expired"),
    "no audience in the answer": ({"audiences": []}, "not valid for"),
    "another audience": ({"audiences": ["https://kubernetes.default.svc"]}, "not valid for"),
    "a person": ({"user__username": "alice"}, "not a service account"),
    "bound to no pod": ({"user__extra": {}}, "not bound to a pod"),
    "no extra at all": ({"user__extra": None}, "not bound to a pod"),
    "another pod by that name": (
        {
            "user__extra": {
                "authentication.kubernetes.io/pod-name": ["llama-base-slice-0-0"],
                "authentication.kubernetes.io/pod-uid": ["old"],
            }
        },
        "no longer exists",
    ),
    "a pod of another namespace": ({"user__username": "system:serviceaccount:private:default"}, "no longer exists"),
}


@pytest.mark.parametrize(("changes", "want"), REFUSED.values(), ids=REFUSED.keys())
async def test_other_callers_are_rejected(
    changes: Any, want: str, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    accept(api_server, pod, **changes)

    with pytest.raises(UnauthenticatedCallerError, match=want):
        await authenticator.authenticate(TOKEN)


async def test_deleted_pod_is_rejected(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)
    api_server.drop(POD, "research", pod["metadata"]["name"])

    with pytest.raises(UnauthenticatedCallerError, match="no longer exists"):
        await authenticator.authenticate(TOKEN)


NO_JOB = {
    "owned by nobody": {},
    "owned by a ReplicaSet": owned_by(Kind("apps/v1", "ReplicaSet", "replicasets"), "llama-base-slice-0", "uid-2"),
    "owned by a Job that is gone": owned_by(JOB, "other", "uid-9"),
    "owned by a namesake of the Job": owned_by(JOB, "llama-base-slice-0", "old"),
    "an owner that does not control it": owned_by(JOB, "llama-base-slice-0", "uid-2", controller=False),
}


@pytest.mark.parametrize("owner", NO_JOB.values(), ids=NO_JOB.keys())
async def test_pod_without_a_job_is_rejected(
    owner: Any, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    other = api_server.put(POD, {"metadata": {"name": "other", "namespace": "research", **owner}, "spec": {}})
    accept(api_server, other)

    with pytest.raises(UnauthenticatedCallerError, match=f"does not belong to a {KIND}"):
        await authenticator.authenticate(TOKEN)


FORGED = {
    "another kind of that name": ({"apiVersion": "example.com/v1"}, {}, {}),
    "a kind of a group that ends alike": ({"apiVersion": f"x.{TRAINING_JOB.api_version}"}, {}, {}),
    "no version": ({"apiVersion": ""}, {}, {}),
    "another kind of our group": ({"kind": "Other"}, {}, {}),
    "the UID of no job": ({"uid": "victim-uid"}, {}, {}),
    "no UID": ({"uid": ""}, {}, {}),
    "a job of another namespace": ({"name": "victim", "uid": "victim-uid"}, {}, {}),
    "a name that is none": ({"name": ["llama"]}, {}, {}),
    "a job that is not its controller": ({"controller": False}, {}, {}),
    "another JobSet's group": ({}, {"apiVersion": "example.com/v1"}, {}),
    "another JobSet's UID": ({}, {"uid": "uid-99"}, {}),
    "a ReplicatedJob": ({}, {"kind": "ReplicatedJob"}, {}),
    "a Job of no group": ({}, {}, {"apiVersion": "v1"}),
    "a Job of another group": ({}, {}, {"apiVersion": "batch.example.com/v1"}),
    "a CronJob": ({}, {}, {"kind": "CronJob"}),
}


@pytest.mark.parametrize("links", FORGED.values(), ids=FORGED.keys())
async def test_owner_chain_is_verified_to_its_end(
    links: Any, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    put(api_server, TRAINING_JOB, "victim", {"uid": "victim-uid"}, namespace="private")
    accept(api_server, make_chain(api_server, "forged", links, owner=("llama", "job-uid")))

    with pytest.raises(UnauthenticatedCallerError, match=f"does not belong to a {KIND}"):
        await authenticator.authenticate(TOKEN)


async def test_a_namespace_cannot_claim_the_job_of_another(
    authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    forged = make_chain(api_server, "llama", owner=("llama", "job-uid"), namespace="evil")
    accept(api_server, forged, user__username="system:serviceaccount:evil:default")

    with pytest.raises(UnauthenticatedCallerError, match=f"does not belong to a {KIND}"):
        await authenticator.authenticate(TOKEN)


LATER = {
    "of the job": ({"apiVersion": f"{GROUP}/v1"}, {}, {}),
    "of the JobSet": ({}, {"apiVersion": "jobset.x-k8s.io/v1"}, {}),
    "of the Job": ({}, {}, {"apiVersion": "batch/v2"}),
}


@pytest.mark.parametrize("links", LATER.values(), ids=LATER.keys())
async def test_a_later_version_of_an_owner_is_the_same_owner(
    links: Any, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    accept(api_server, make_chain(api_server, "later", links, owner=("llama", "job-uid")))

    assert (await authenticator.authenticate(TOKEN)).job_uid == "job-uid"


async def test_recreated_job_has_no_pods_of_the_former_one(
    authenticator: PodAuthenticator, api_server: Any, store: Store, pod: Any
) -> None:
    (former,) = (item for key, item in api_server.objects.items() if key[0] is TRAINING_JOB)
    api_server.drop(TRAINING_JOB, "research", "llama")
    put(api_server, TRAINING_JOB, "llama", {"uid": "new-uid"})
    accept(api_server, pod)

    with pytest.raises(UnauthenticatedCallerError, match=f"does not belong to a {KIND}"):
        await authenticator.authenticate(TOKEN)

    store.put(TRAINING_JOB, former)  # the watch is behind: the store still has it
    assert (await authenticator.authenticate(make_token("another"))).job_uid == "job-uid"


async def test_rejections_are_temporary_while_a_kind_is_unknown(
    authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    accept(api_server, pod)
    api_server.kinds.remove(TRAINING_JOB)

    with pytest.raises(ClusterUnavailableError, match=f"look up a {KIND}"):
        await authenticator.authenticate(TOKEN)


@pytest.mark.parametrize("token", ["", "x" * (MAX_TOKEN + 1)], ids=["none", "too long"])
async def test_no_token_is_not_worth_a_question(token: str, authenticator: PodAuthenticator, api_server: Any) -> None:
    with pytest.raises(UnauthenticatedCallerError, match="token is needed"):
        await authenticator.authenticate(token)

    assert api_server.requests == []


async def test_an_answer_is_good_for_a_while(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)
    await authenticator.authenticate(TOKEN)
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False}

    await authenticator.authenticate(TOKEN)
    with pytest.raises(UnauthenticatedCallerError):
        await authenticator.authenticate(make_token("another token"))
    for digest, (until, answer) in tuple(authenticator._cache._accepted.items()):
        authenticator._cache._accepted[digest] = (until - ACCEPTED_CACHE_SECONDS, answer)
    with pytest.raises(UnauthenticatedCallerError):
        await authenticator.authenticate(TOKEN)


async def test_a_refusal_is_good_for_a_little_while(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False}
    for _ in range(3):
        with pytest.raises(UnauthenticatedCallerError):
            await authenticator.authenticate(TOKEN)
    assert len(api_server.requests) == 1

    accept(api_server, pod)
    ((digest, (until, answer)),) = authenticator._cache._rejected.items()
    authenticator._cache._rejected[digest] = (until - REJECTED_CACHE_SECONDS, answer)
    assert await authenticator.authenticate(TOKEN)


async def test_pod_rejected_for_an_old_token_is_accepted_with_the_next(
    authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False, "error": "token has expired"}
    with pytest.raises(UnauthenticatedCallerError, match="token has expired"):
        await authenticator.authenticate(make_token("old"))

    accept(api_server, pod)

    assert await authenticator.authenticate(make_token("new"))


async def test_cached_answer_about_a_deleted_pod_expires(
    authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    accept(api_server, pod)
    await authenticator.authenticate(TOKEN)
    api_server.drop(POD, "research", pod["metadata"]["name"])

    assert await authenticator.authenticate(TOKEN), (
        "the API server itself takes a deleted pod's token for a minute more"
    )
    for digest, (until, answer) in tuple(authenticator._cache._accepted.items()):
        authenticator._cache._accepted[digest] = (until - ACCEPTED_CACHE_SECONDS, answer)
    with pytest.raises(UnauthenticatedCallerError, match="no longer exists"):
        await authenticator.authenticate(TOKEN)


async def test_no_token_is_kept(authenticator: PodAuthenticator, api_server: Any, pod: Any) -> None:
    accept(api_server, pod)
    await authenticator.authenticate(make_token("very-secret"))

    assert make_token("very-secret") not in repr(vars(authenticator)) + repr(vars(authenticator._cache))


@pytest.mark.parametrize(
    "status",
    [500, 401, 403, 404],
    ids=["server error", "the operator's own token has expired", "no right to ask", "no such review"],
)
async def test_rejections_are_temporary_without_an_answer(
    status: int, authenticator: PodAuthenticator, api_server: Any, pod: Any
) -> None:
    api_server.fault = lambda _: web.Response(status=status)
    with pytest.raises(ClusterUnavailableError):
        await authenticator.authenticate(TOKEN)

    api_server.fault = lambda _: None
    accept(api_server, pod)
    assert await authenticator.authenticate(TOKEN)


ANSWERS = {"allowed": ({"allowed": True}, True), "denied": ({"allowed": False}, False), "nothing": ({}, False)}


@pytest.mark.parametrize(("status", "want"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_the_right_to_use_a_service_account(status: Any, want: bool, api: Any, api_server: Any) -> None:
    requested = []
    api_server.reviews["subjectaccessreviews"] = lambda spec: requested.append(spec) or status
    user = {"username": "alice", "uid": "u", "groups": ["dev"], "extra": {"scopes": ["a"]}}

    assert await may_use_service_account(api, user, "research", "trainer") is want
    assert requested == [
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


async def test_a_flood_of_strangers_makes_no_pod_a_stranger(
    authenticator: PodAuthenticator, api_server: Any, pod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "MAX_CACHED", 4)
    accept(api_server, pod)
    await authenticator.authenticate(TOKEN)
    api_server.reviews["tokenreviews"] = lambda _: {"authenticated": False}
    for number in range(10):
        with pytest.raises(UnauthenticatedCallerError):
            await authenticator.authenticate(make_token(f"bad-{number}"))

    assert await authenticator.authenticate(TOKEN)
    assert len(authenticator._cache._rejected) == 4


async def test_a_pod_that_is_known_does_not_wait_with_strangers(
    authenticator: PodAuthenticator, api_server: Any, pod: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(api_server, pod)
    await authenticator.authenticate(TOKEN)
    for digest, (until, answer) in tuple(authenticator._cache._accepted.items()):
        authenticator._cache._accepted[digest] = (until - ACCEPTED_CACHE_SECONDS, answer)
    monkeypatch.setattr(authenticator._cache, "_review_queue", FairQueue(at_once=0))

    assert await authenticator.authenticate(TOKEN)
