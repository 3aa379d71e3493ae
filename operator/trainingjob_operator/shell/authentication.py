"""Authentication of pods and authorization of users.

A pod authenticates with a bound service account token of the operator's audience, which names the pod. The pod's owner
references lead to the job. The operator verifies the token with the issuer's keys, because thousands of hosts start at
once. The API server reviews one token of each ServiceAccount, and each token that the operator cannot verify.

A user needs the verb `use` on a ServiceAccount to set it in a job.
"""

import base64
import json
from collections.abc import Sequence
from datetime import timedelta

from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_api.spec.job import KIND
from trainingjob_operator.core.manifests import Manifest, get_text, get_value, iter_items
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.shell.account_tokens import SERVICE_ACCOUNT_PREFIX
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import (
    Caller,
    ClusterUnavailableError,
    MissingKindError,
    UnauthenticatedCallerError,
)
from trainingjob_operator.shell.issuer import CONFIRMED_SECONDS, ConfirmedAccounts, TokenIssuer
from trainingjob_operator.shell.kinds import ACCESS_REVIEW, JOB, JOB_SET, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.reviews import MAX_TOKEN, CacheLimits, TokenCache, create_review, review_token
from trainingjob_operator.shell.store import Store

ACCEPTED_CACHE_SECONDS = 120.0
"""As long as the API server itself keeps the answers of a token webhook by default."""
REJECTED_CACHE_SECONDS = 5.0
MAX_REVIEWS = 16
"""Maximum number of concurrent TokenReviews of unknown tokens. Thousands of hosts start, or reconnect, at once."""
DELETION_LEEWAY = timedelta(minutes=1)
"""Time after a pod's grace period during which the API server itself accepts its token."""
VERIFIED_CACHE_SECONDS = ACCEPTED_CACHE_SECONDS - CONFIRMED_SECONDS
"""A deleted ServiceAccount is thus noticed as late as with a review of each token."""
LIMITS = CacheLimits(ACCEPTED_CACHE_SECONDS, REJECTED_CACHE_SECONDS, MAX_REVIEWS, VERIFIED_CACHE_SECONDS)

OWNER_CHAINS = ((JOB, JOB_SET, TRAINING_JOB), (JOB, TRAINING_JOB))
"""Chains of controllers from a pod to its TrainingJob: that of a host, and that of a pod that tokenizes text."""
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


class PodAuthenticator:
    """Authenticates callers of the rendezvous by token, with a short-lived cache of the results."""

    def __init__(self, api: Api, store: Store) -> None:
        """Verify tokens, or review them with the API server; look up pods in the store first."""
        self._api = api
        self._store = store
        self._issuer = TokenIssuer(api)
        self._accounts = ConfirmedAccounts()
        self._cache = TokenCache[Caller | str](LIMITS, lambda answer: isinstance(answer, Caller))

    async def authenticate(self, token: str, peer: str = "") -> Caller:
        """Return the pod to which a token was issued.

        Raises:
            UnauthenticatedCallerError: the token is not valid for a pod of a job.
            BusyError: too many unknown tokens wait for a review.
            ClusterUnavailableError: the API server cannot review the token now.
        """
        if not token or len(token) > MAX_TOKEN:
            raise UnauthenticatedCallerError("a bearer token is needed")
        result = self._cache.recall(token)
        if result is None:
            if not has_operator_audience(token):
                raise UnauthenticatedCallerError(f"the token is not a JSON web token for {TOKEN_AUDIENCE}")
            result = await self._cache.find(token, peer, self._review_token, self._verify_token)
        if isinstance(result, str):
            raise UnauthenticatedCallerError(result)
        return result

    async def _verify_token(self, token: str) -> Caller | None:  # None: it needs a review
        """Return the caller if the issuer's keys verify the token and a recent review confirmed its ServiceAccount."""
        claims = await self._issuer.verify(token, TOKEN_AUDIENCE)
        if claims is None:
            return None
        caller = await self._find_caller(claims.account.namespace, claims.pod, claims.pod_uid)
        if isinstance(caller, str):
            return None

        async def review() -> bool:
            return isinstance(await self._review_token(token), Caller)

        return caller if await self._accounts.is_confirmed(claims.account, review) else None

    async def _review_token(self, token: str) -> Caller | str:
        """Review a token. Return the caller, or why the token is rejected."""
        status = await review_token(self._api, token, (TOKEN_AUDIENCE,))
        if status.get("authenticated") is not True or TOKEN_AUDIENCE not in (status.get("audiences") or ()):
            return f"the token is not valid for {TOKEN_AUDIENCE}: {get_text(status, 'error') or 'refused'}"
        user = get_text(status, "user", "username")
        if not user.startswith(SERVICE_ACCOUNT_PREFIX):
            return f"'{user}' is not a service account"
        namespace = user.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")[0]
        name, uid = (_first(get_value(status, "user", "extra", key)) for key in (_POD_NAME, _POD_UID))
        if not name or not uid:
            return "the token is not bound to a pod"
        return await self._find_caller(namespace, name, uid)

    async def _find_caller(self, namespace: str, name: str, uid: str) -> Caller | str:
        """Return a pod with its job, or why it is rejected."""
        pod = await self._find(POD, namespace, name, uid)
        if pod is None or self._is_past_deletion(pod):
            return f"pod '{namespace}/{name}' with UID {uid} no longer exists"
        job = await self._find_job(namespace, pod)
        if job is None:
            return f"pod '{namespace}/{name}' does not belong to a {KIND}"
        return Caller(uid, namespace, get_text(job, "metadata", "name"), get_text(job, "metadata", "uid"))

    def _is_past_deletion(self, pod: Manifest) -> bool:
        """Return whether a pod still exists although its grace period is over. Its token is then no longer valid."""
        deleted_at = parse_time(get_text(pod, "metadata", "deletionTimestamp"))
        return deleted_at is not None and self._api.clock.now() - deleted_at > DELETION_LEEWAY

    async def _find_job(self, namespace: str, pod: Manifest) -> Manifest | None:  # None: the pod belongs to no job
        """Follow the owner references from a pod to its TrainingJob.

        Each owner must exist in this namespace with the referenced UID: a user who may create JobSets can set any
        reference.
        """
        for chain in OWNER_CHAINS:
            if job := await self._follow(namespace, pod, chain):
                return job
        return None

    async def _follow(self, namespace: str, pod: Manifest, chain: Sequence[Kind]) -> Manifest | None:  # None: broken
        dependent = pod
        for kind in chain:
            reference = _controller(dependent, kind)
            owner = await self._find(kind, namespace, get_text(reference, "name"), get_text(reference, "uid"))
            if owner is None:
                return None
            dependent = owner
        return dependent

    async def _find(self, kind: Kind, namespace: str, name: str, uid: str) -> Manifest | None:  # None: not found
        if not name or not uid:
            return None
        manifest = self._store[kind].find(namespace, name)
        if manifest is None or get_text(manifest, "metadata", "uid") != uid:  # the watch may lag behind
            try:
                manifest = await self._api.get(kind, namespace, name)
            except MissingKindError as error:
                raise ClusterUnavailableError(f"cannot look up a {kind.name}: {error}") from error
        return manifest if manifest is not None and get_text(manifest, "metadata", "uid") == uid else None


def has_operator_audience(token: str) -> bool:
    """Return whether a JSON web token has the operator's audience, without verifying its signature."""
    head, _, rest = token.partition(".")
    payload, _, signature = rest.partition(".")
    if not head or not signature or not token.isascii():
        return False
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return False
    audience = claims.get("aud") if isinstance(claims, dict) else None
    return TOKEN_AUDIENCE in (audience if isinstance(audience, list) else [audience])


async def may_use_service_account(api: Api, user: Manifest, namespace: str, name: str) -> bool:
    """Return whether the user of an AdmissionReview may `use` a ServiceAccount.

    Raises:
        ClusterUnavailableError: the API server cannot review the permission now.
    """
    spec = {
        "user": get_text(user, "username"),
        "uid": get_text(user, "uid"),
        "groups": get_value(user, "groups") or [],
        "extra": get_value(user, "extra") or {},
        "resourceAttributes": {
            "namespace": namespace,
            "verb": "use",
            "resource": "serviceaccounts",
            "name": name,
        },
    }
    return (await create_review(api, ACCESS_REVIEW, spec)).get("allowed") is True


def _controller(manifest: Manifest, kind: Kind) -> Manifest:
    """Return the controller's owner reference if it has the given kind and API group; else an empty one.

    The API version may differ, since an upgraded controller writes a newer one.
    """
    owners = (owner for owner in iter_items(manifest, "metadata", "ownerReferences") if owner.get("controller") is True)
    expected = (_group(kind.api_version), kind.name)
    return next(
        (owner for owner in owners if (_group(get_text(owner, "apiVersion")), owner.get("kind")) == expected), {}
    )


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _first(values: object) -> str:
    return str(values[0]) if isinstance(values, list) and values else ""
