"""Who somebody is and what they may do, as the API server says.

A pod proves itself by a token of one audience, made for it alone: the API server names the pod's UID, and the owners of
the pod lead to the job. A person names a ServiceAccount only with the right to `use` it.
"""

import asyncio
import base64
import hashlib
import json
from collections import OrderedDict

from trainingjob_api.job import KIND
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.core.manifests import Manifest, dig, items, text
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.checking import Turns
from trainingjob_operator.shell.kinds import ACCESS_REVIEW, JOB, JOB_SET, POD, TOKEN_REVIEW, TRAINING_JOB, Kind
from trainingjob_operator.shell.ports import (
    Caller,
    ClusterUnavailableError,
    ForbiddenError,
    MissingKindError,
    UnknownCallerError,
)
from trainingjob_operator.shell.store import Store

ACCEPTED_SECONDS = 60.0
REFUSED_SECONDS = 5.0
MAX_REMEMBERED = 8192
MAX_REVIEWS = 4
"""Tokens of strangers that the API server is asked about at a time, of all that its client can ask."""
MAX_WAITING = 64
"""Strangers of one peer that wait for that."""
WAIT_SECONDS = 5.0
MAX_TOKEN = 16 * 1024

OWNERS = (JOB, JOB_SET, TRAINING_JOB)
"""Who controls a pod, its controller, and so on up."""
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_SERVICE_ACCOUNT = "system:serviceaccount:"


class PodAuthenticator:
    """Tells by its token which pod of which job calls the rendezvous. An answer is good for a little while."""

    def __init__(self, api: Api, store: Store) -> None:
        """Ask an API server; look pods up in a store first."""
        self._api = api
        self._store = store
        # By hash, never the token; apart, so that no flood of strangers makes a pod a stranger.
        self._remembered: OrderedDict[str, tuple[float, Caller | str]] = OrderedDict()
        self._refused: OrderedDict[str, tuple[float, Caller | str]] = OrderedDict()
        self._turns = Turns(MAX_WAITING, MAX_REVIEWS)

    async def identify(self, token: str, peer: str = "") -> Caller:
        """Return the pod that a token was issued to.

        Raises:
            UnknownCallerError: it proves no pod of a job.
            BusyError: too many strangers ask.
            ClusterUnavailableError: nobody can tell now.
        """
        if not token or len(token) > MAX_TOKEN:
            raise UnknownCallerError("a bearer token is needed")
        if not is_for_us(token):
            raise UnknownCallerError(f"the token is no JSON web token for {TOKEN_AUDIENCE}")
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = asyncio.get_running_loop().time()
        good_until, answer = self._remembered.get(digest) or self._refused.get(digest) or (0.0, "")
        if good_until <= now:
            if digest in self._remembered:
                answer = await self._ask(token)
            else:
                async with self._turns.turn(peer, seconds=WAIT_SECONDS):
                    answer = await self._ask(token)
            self._remember(digest, now, answer)
        if isinstance(answer, str):
            raise UnknownCallerError(answer)
        return answer

    def _remember(self, digest: str, now: float, answer: Caller | str) -> None:
        is_known = isinstance(answer, Caller)
        good_for, kept = (ACCEPTED_SECONDS, self._remembered) if is_known else (REFUSED_SECONDS, self._refused)
        for each in (self._remembered, self._refused):
            each.pop(digest, None)
        kept[digest] = (now + good_for, answer)
        if len(kept) > MAX_REMEMBERED:
            kept.popitem(last=False)

    async def _ask(self, token: str) -> Caller | str:
        """Return the caller, or why it is none."""
        spec = {"token": token, "audiences": [TOKEN_AUDIENCE]}
        try:
            status = await review(self._api, TOKEN_REVIEW, spec)
        except ClusterUnavailableError as unavailable:  # whose words may quote what was sent
            words = str(unavailable).replace(token, "TOKEN")
            raise ClusterUnavailableError(words, retry_after=unavailable.retry_after) from None
        error = text(status, "error").replace(token, "TOKEN")
        if status.get("authenticated") is not True or TOKEN_AUDIENCE not in (status.get("audiences") or ()):
            return f"the token is not valid for {TOKEN_AUDIENCE}: {error or 'refused'}"
        user = text(status, "user", "username")
        if not user.startswith(_SERVICE_ACCOUNT):
            return f"'{user}' is no service account"
        namespace = user.removeprefix(_SERVICE_ACCOUNT).partition(":")[0]
        name, uid = (_first(dig(status, "user", "extra", key)) for key in (_POD_NAME, _POD_UID))
        if not name or not uid:
            return "the token is bound to no pod"
        pod = await self._find(POD, namespace, name, uid)
        if pod is None:
            return f"pod '{namespace}/{name}' with UID {uid} is gone"
        job = await self._find_job(namespace, pod)
        if job is None:
            return f"pod '{namespace}/{name}' belongs to no {KIND}"
        return Caller(uid, namespace, text(job, "metadata", "name"), text(job, "metadata", "uid"))

    async def _find_job(self, namespace: str, pod: Manifest) -> Manifest | None:  # None: no job at the end
        """Follow the controllers from a pod to its TrainingJob: each must exist in this namespace, with that UID.

        Whoever may create JobSets writes owner references as they like, so none is believed unread.
        """
        owned = pod
        for kind in OWNERS:
            reference = _controller(owned, kind)
            found = await self._find(kind, namespace, text(reference, "name"), text(reference, "uid"))
            if found is None:
                return None
            owned = found
        return owned

    async def _find(self, kind: Kind, namespace: str, name: str, uid: str) -> Manifest | None:  # None: it is not there
        if not name or not uid:
            return None
        known = self._store[kind].find(namespace, name)
        if known is None or text(known, "metadata", "uid") != uid:  # the watch may be a moment behind
            try:
                known = await self._api.get(kind, namespace, name)
            except MissingKindError as error:
                raise ClusterUnavailableError(f"cannot look for a {kind.name}: {error}") from error
        return known if known is not None and text(known, "metadata", "uid") == uid else None


def is_for_us(token: str) -> bool:
    """Return whether a token is a JSON web token whose audience is the operator, by what it says itself."""
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
    """Return whether a user, as an AdmissionReview names one, has the right to `use` a ServiceAccount.

    Raises:
        ClusterUnavailableError: nobody can tell now.
    """
    spec = {
        "user": text(user, "username"),
        "uid": text(user, "uid"),
        "groups": dig(user, "groups") or [],
        "extra": dig(user, "extra") or {},
        "resourceAttributes": {
            "namespace": namespace,
            "verb": "use",
            "resource": "serviceaccounts",
            "name": name,
        },
    }
    return (await review(api, ACCESS_REVIEW, spec)).get("allowed") is True


async def review(api: Api, kind: Kind, spec: Manifest) -> Manifest:
    """Ask the API server for a review and return its status.

    Raises:
        ClusterUnavailableError: it does not answer, or does not let the operator ask.
    """
    manifest = {"apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
    try:
        answer = await api.create(kind, manifest)
    except (ForbiddenError, MissingKindError, NotFoundError) as error:
        raise ClusterUnavailableError(f"cannot ask for a {kind.name}: {error}") from error
    status = answer.get("status")
    return status if isinstance(status, dict) else {}


def _controller(manifest: Manifest, kind: Kind) -> Manifest:
    """Return the reference to an object's controller if it is of a kind and its group; else an empty one.

    The version may be another: a controller that was upgraded writes a later one.
    """
    owners = (owner for owner in items(manifest, "metadata", "ownerReferences") if owner.get("controller") is True)
    wanted = (_group(kind.api_version), kind.name)
    return next((owner for owner in owners if (_group(text(owner, "apiVersion")), owner.get("kind")) == wanted), {})


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _first(values: object) -> str:
    return str(values[0]) if isinstance(values, list) and values else ""
