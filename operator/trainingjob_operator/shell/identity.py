"""Who somebody is and what they may do, as the API server says.

A pod proves itself by a token of one audience, made for it alone: the API server names the pod's UID, and the owners of
the pod lead to the job. A person names a ServiceAccount only with the right to `use` it.
"""

import asyncio
import hashlib
from collections import OrderedDict

from trainingjob_api.job import KIND
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.core.manifests import Manifest, dig, items, text
from trainingjob_operator.shell.api import Api, NotFoundError
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
        self._remembered: OrderedDict[str, tuple[float, Caller | str]] = OrderedDict()  # by hash: never the token

    async def identify(self, token: str) -> Caller:
        """Return the pod that a token was issued to.

        Raises:
            UnknownCallerError: it proves no pod of a job.
            ClusterUnavailableError: nobody can tell now.
        """
        if not token or len(token) > MAX_TOKEN:
            raise UnknownCallerError("a bearer token is needed")
        digest = hashlib.sha256(token.encode()).hexdigest()
        now = asyncio.get_running_loop().time()
        good_until, answer = self._remembered.get(digest, (0.0, ""))
        if good_until <= now:
            answer = await self._ask(token)
            self._remember(digest, now, answer)
        if isinstance(answer, str):
            raise UnknownCallerError(answer)
        return answer

    def _remember(self, digest: str, now: float, answer: Caller | str) -> None:
        good_for = ACCEPTED_SECONDS if isinstance(answer, Caller) else REFUSED_SECONDS
        self._remembered[digest] = (now + good_for, answer)
        self._remembered.move_to_end(digest)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    async def _ask(self, token: str) -> Caller | str:
        """Return the caller, or why it is none."""
        spec = {"token": token, "audiences": [TOKEN_AUDIENCE]}
        status = await review(self._api, TOKEN_REVIEW, spec)
        if status.get("authenticated") is not True or TOKEN_AUDIENCE not in (status.get("audiences") or ()):
            return f"the token is not valid for {TOKEN_AUDIENCE}: {text(status, 'error') or 'refused'}"
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
