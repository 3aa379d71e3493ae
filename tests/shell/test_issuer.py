"""Pods of a confirmed ServiceAccount need no TokenReview each, and what the issuer's keys cannot verify is reviewed."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from aiohttp import web

from tests.support.signed_tokens import CONFIGURATION, key_set, make_binding, make_claims, rsa_jwk, rsa_key, sign
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.shell.authentication import (
    ACCEPTED_CACHE_SECONDS,
    REJECTED_CACHE_SECONDS,
    VERIFIED_CACHE_SECONDS,
    PodAuthenticator,
)
from trainingjob_operator.shell.check_pool import FairQueue
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, UnauthenticatedCallerError
from trainingjob_operator.shell.issuer import CONFIGURATION_PATH, CONFIRMED_SECONDS, KEYS_PATH
from trainingjob_operator.shell.kinds import JOB, JOB_SET, POD, TRAINING_JOB, Kind

REVIEW = "POST /apis/authentication.k8s.io/v1/tokenreviews"
type Token = Callable[..., str]


def put(api_server: Any, kind: Kind, name: str, owner: tuple[Kind, str] | None = None, **metadata: Any) -> None:
    """Put an object with its controller. An object's UID is its name with `-uid`."""
    owners = [
        {"apiVersion": of.api_version, "kind": of.name, "name": named, "uid": f"{named}-uid", "controller": True}
        for of, named in ([owner] if owner else [])
    ]
    metadata = {"name": name, "namespace": "research", "uid": f"{name}-uid", "ownerReferences": owners, **metadata}
    api_server.put(kind, {"metadata": metadata, "spec": {}})


@pytest.fixture
def documents(api_server: Any) -> dict[str, Any]:
    """Let the API server show its issuer and keys, and let it know a job; return what it shows by path."""
    shown: dict[str, Any] = {CONFIGURATION_PATH: CONFIGURATION, KEYS_PATH: key_set()}

    def show(request: web.Request) -> web.Response | None:
        if request.path not in shown:
            return None
        if request.path == KEYS_PATH and "*/*" not in request.headers["Accept"]:  # as the API server
            return web.Response(status=406)
        return web.json_response(shown[request.path])

    api_server.fault = show
    put(api_server, TRAINING_JOB, "llama")
    put(api_server, JOB_SET, "set", (TRAINING_JOB, "llama"))
    put(api_server, JOB, "slice", (JOB_SET, "set"))
    review_all(api_server)
    return shown


@pytest.fixture
def token(api_server: Any, documents: Any) -> Token:
    """Return a function that makes a pod of the job, and returns its token with some changes."""

    def make(pod: str = "host-0", *, key: Any = None, head: Any = None, metadata: Any = None, **claims: Any) -> str:
        put(api_server, POD, pod, (JOB, "slice"), **(metadata or {}))
        binding = make_binding(pod={"name": pod, "uid": f"{pod}-uid"})
        return sign(make_claims(**{"kubernetes.io": binding, **claims}), head, key)

    return make


def review_all(api_server: Any, *, authenticated: bool = True, pod: str = "host-0") -> None:
    extra = {
        "authentication.kubernetes.io/pod-name": [pod],
        "authentication.kubernetes.io/pod-uid": [f"{pod}-uid"],
    }
    user = {"username": "system:serviceaccount:research:default", "extra": extra}
    status = {"authenticated": authenticated, "audiences": [TOKEN_AUDIENCE], "user": user}
    api_server.reviews["tokenreviews"] = lambda _: status


def count_reviews(api_server: Any) -> int:
    return api_server.requests.count(REVIEW)


def expire(authenticator: PodAuthenticator, *, accounts: bool = True) -> None:
    """Let the lifetimes of all results end."""
    for results in (authenticator._cache._accepted, authenticator._cache._rejected):
        for digest, (_, answer) in tuple(results.items()):
            results[digest] = (-inf, answer)
    for account, (_, is_confirmed) in tuple(authenticator._accounts._results.items()) if accounts else ():
        authenticator._accounts._results[account] = (-inf, is_confirmed)


async def test_pods_of_an_account_need_one_review(
    authenticator: PodAuthenticator, api_server: Any, token: Token
) -> None:
    tokens = [token(f"host-{number}") for number in range(20)]

    callers = await asyncio.gather(*map(authenticator.authenticate, tokens))

    assert [caller.pod_uid for caller in callers] == [f"host-{number}-uid" for number in range(20)]
    assert {(caller.namespace, caller.job, caller.job_uid) for caller in callers} == {
        ("research", "llama", "llama-uid")
    }
    assert count_reviews(api_server) == 1
    assert [api_server.requests.count(f"GET {path}") for path in (CONFIGURATION_PATH, KEYS_PATH)] == [1, 1]


async def test_other_accounts_and_keys_need_a_review_each(
    authenticator: PodAuthenticator, api_server: Any, documents: Any, token: Token
) -> None:
    documents[KEYS_PATH] = key_set(rsa_jwk(rsa_key(1), "second"))
    other = make_binding(pod={"name": "host-0", "uid": "host-0-uid"}, serviceaccount={"name": "default", "uid": "new"})

    for each in (
        token(),
        token(**{"kubernetes.io": other}),
        token(key=rsa_key(1), head={"kid": "second"}),
        token(iat=1),
    ):
        await authenticator.authenticate(each)

    assert count_reviews(api_server) == 3


async def test_deleted_account_is_noticed_as_late_as_without_keys(
    authenticator: PodAuthenticator, api_server: Any, token: Token
) -> None:
    await authenticator.authenticate(token())
    ((_, (until, _)),) = authenticator._cache._accepted.items()
    ((_, (confirmed_until, _)),) = authenticator._accounts._results.items()
    now = asyncio.get_running_loop().time()
    review_all(api_server, authenticated=False)

    assert VERIFIED_CACHE_SECONDS + CONFIRMED_SECONDS == ACCEPTED_CACHE_SECONDS
    assert until <= now + VERIFIED_CACHE_SECONDS
    assert confirmed_until <= now + CONFIRMED_SECONDS
    expire(authenticator, accounts=False)
    assert await authenticator.authenticate(token())
    expire(authenticator)
    with pytest.raises(UnauthenticatedCallerError, match="refused"):
        await authenticator.authenticate(token())


async def test_tokens_of_a_denied_account_are_reviewed_alone(
    authenticator: PodAuthenticator, api_server: Any, token: Token
) -> None:
    review_all(api_server, authenticated=False)
    for number in range(3):
        with pytest.raises(UnauthenticatedCallerError, match="refused"):
            await authenticator.authenticate(token(iat=number))
    assert count_reviews(api_server) == 4, "one about the account, and one of each token"

    ((_, (until, _)),) = authenticator._accounts._results.items()
    assert until <= asyncio.get_running_loop().time() + REJECTED_CACHE_SECONDS
    review_all(api_server)
    expire(authenticator)
    assert await authenticator.authenticate(token(iat=1))


async def test_token_of_a_deleted_pod_is_rejected(
    authenticator: PodAuthenticator, api_server: Any, token: Token
) -> None:
    mine = token()
    await authenticator.authenticate(mine)
    api_server.drop(POD, "research", "host-0")
    review_all(api_server, authenticated=False)
    expire(authenticator, accounts=False)

    with pytest.raises(UnauthenticatedCallerError, match="refused"):
        await authenticator.authenticate(mine)


async def test_pod_is_rejected_after_its_grace_period(
    authenticator: PodAuthenticator, api: Any, token: Token, store: Any, api_server: Any
) -> None:
    now = api.clock.now()
    await authenticator.authenticate(token())
    for name, since in (("ending", timedelta(seconds=30)), ("stuck", timedelta(seconds=90))):
        mine = token(name, metadata={"deletionTimestamp": (now - since).isoformat()})
        review_all(api_server, pod=name)
        if name == "ending":
            assert await authenticator.authenticate(mine)
        else:
            with pytest.raises(UnauthenticatedCallerError, match="no longer exists"):
                await authenticator.authenticate(mine)


async def test_token_of_a_pod_without_a_job_is_rejected(
    authenticator: PodAuthenticator, api_server: Any, token: Token
) -> None:
    mine = token("foreign")
    put(api_server, POD, "foreign")
    review_all(api_server, pod="foreign")

    with pytest.raises(UnauthenticatedCallerError, match="does not belong to"):
        await authenticator.authenticate(mine)


async def test_rotated_key_is_read_again_at_most_once_in_a_while(
    authenticator: PodAuthenticator, api_server: Any, documents: Any, token: Token
) -> None:
    await authenticator.authenticate(token())
    documents[KEYS_PATH] = key_set(rsa_jwk(rsa_key(1), "second"))
    for number in range(3):
        await authenticator.authenticate(token(key=rsa_key(1), head={"kid": "second"}, iat=number))
    assert (api_server.requests.count(f"GET {KEYS_PATH}"), count_reviews(api_server)) == (1, 4)

    authenticator._issuer._next_read = -inf
    for number in range(3, 6):
        await authenticator.authenticate(token(key=rsa_key(1), head={"kid": "second"}, iat=number))
    assert (api_server.requests.count(f"GET {KEYS_PATH}"), count_reviews(api_server)) == (2, 5)


@pytest.mark.parametrize("status", [403, 404, 500], ids=["no right", "no such path", "server error"])
async def test_without_readable_keys_each_token_is_reviewed(
    status: int, authenticator: PodAuthenticator, api_server: Any, token: Token
) -> None:
    api_server.fault = lambda request: web.Response(status=status) if request.path == CONFIGURATION_PATH else None

    for number in range(3):
        await authenticator.authenticate(token(iat=number))

    assert (api_server.requests.count(f"GET {CONFIGURATION_PATH}"), count_reviews(api_server)) == (1, 3)


async def test_without_usable_keys_each_token_is_reviewed(
    authenticator: PodAuthenticator, api_server: Any, documents: Any, token: Token
) -> None:
    documents[KEYS_PATH] = {"keys": []}

    for number in range(3):
        await authenticator.authenticate(token(iat=number))

    assert count_reviews(api_server) == 3


async def test_verified_token_does_not_wait_with_strangers(
    authenticator: PodAuthenticator, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator._cache, "_review_queue", FairQueue(at_once=0))

    assert await authenticator.authenticate(token())


async def test_failed_review_of_an_account_is_not_kept(
    authenticator: PodAuthenticator, api_server: Any, documents: Any, token: Token
) -> None:
    tokens = [token(f"host-{number}") for number in range(3)]
    await authenticator._issuer.verify(tokens[0], TOKEN_AUDIENCE)
    api_server.fault = lambda request: web.Response(status=500) if request.method == "POST" else None
    answers = await asyncio.gather(*map(authenticator.authenticate, tokens), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ClusterUnavailableError] * 3
    assert count_reviews(api_server) == 1

    api_server.fault = lambda _: None
    assert await authenticator.authenticate(tokens[0])
