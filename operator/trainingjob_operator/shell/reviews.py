"""Reviews of the API server: who a bearer token belongs to, and what a user may do. Results are cached by token."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.check_pool import FairQueue
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.kinds import TOKEN_REVIEW, Kind

MAX_CACHED = 8192
MAX_WAITING = 64
"""Maximum number of queued unknown tokens per peer."""
MAX_TOKEN = 16 * 1024
"""Maximum length of a token, in characters."""
WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class CacheLimits:
    """Lifetimes of results in seconds, and the maximum number of concurrent reviews of unknown tokens."""

    accepted_seconds: float
    rejected_seconds: float
    max_reviews: int
    verified_seconds: float = 0.0
    """Lifetime of a result that needed no review."""


class TokenCache[Result]:
    """Results of reviews by token, with a fair queue for unknown tokens.

    It holds hashes, never tokens. Accepted and rejected tokens have separate caches, so that many invalid tokens cannot
    evict valid ones.
    """

    def __init__(self, limits: CacheLimits, is_accepted: Callable[[Result], bool]) -> None:
        self._limits = limits
        self._is_accepted = is_accepted
        self._accepted: OrderedDict[str, tuple[float, Result]] = OrderedDict()
        self._rejected: OrderedDict[str, tuple[float, Result]] = OrderedDict()
        self._review_queue = FairQueue(MAX_WAITING, limits.max_reviews)

    def recall(self, token: str) -> Result | None:  # None: unknown, or too old
        """Return the cached result for a token."""
        digest = _hash(token)
        cached = self._accepted.get(digest) or self._rejected.get(digest)
        return cached[1] if cached and cached[0] > asyncio.get_running_loop().time() else None

    async def find(
        self,
        token: str,
        peer: str,
        review: Callable[[str], Awaitable[Result]],
        verify: Callable[[str], Awaitable[Result | None]] | None = None,
    ) -> Result:
        """Return the cached result for a token, or that of `review`. A token that was accepted before does not queue.

        `verify` accepts a token without a review and a queue. It returns None for a token that needs a review.

        Raises:
            BusyError: too many unknown tokens wait for a review.
            Exception: an error of `review` or `verify`, which is not cached.
        """
        if (cached := self.recall(token)) is not None:
            return cached
        digest, now = _hash(token), asyncio.get_running_loop().time()
        if verify and (verified := await verify(token)) is not None:
            self._keep(self._accepted, digest, now + self._limits.verified_seconds, verified)
            return verified
        if digest in self._accepted:
            result = await review(token)
        else:
            async with self._review_queue.acquire(peer, seconds=WAIT_SECONDS):
                result = await review(token)
        if self._is_accepted(result):
            self._keep(self._accepted, digest, now + self._limits.accepted_seconds, result)
        else:
            self._keep(self._rejected, digest, now + self._limits.rejected_seconds, result)
        return result

    def _keep(
        self, results: OrderedDict[str, tuple[float, Result]], digest: str, expires_at: float, result: Result
    ) -> None:
        for cache in (self._accepted, self._rejected):
            cache.pop(digest, None)
        results[digest] = (expires_at, result)
        if len(results) > MAX_CACHED:
            results.popitem(last=False)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_token(request: web.Request) -> str:
    """Return the bearer token of a request. Empty: it has none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def review_token(api: Api, token: str, audiences: Sequence[str] = ()) -> Manifest:
    """Return the status of a TokenReview, with an `error` that does not contain the token.

    Without audiences, the token must be for the API server itself.

    Raises:
        ClusterUnavailableError: the API server cannot review the token now.
    """
    spec = {"token": token} | ({"audiences": [*audiences]} if audiences else {})
    try:
        status = await create_review(api, TOKEN_REVIEW, spec)
    except ClusterUnavailableError as unavailable:  # the message may contain the request
        message = str(unavailable).replace(token, "TOKEN")
        raise ClusterUnavailableError(message, retry_after=unavailable.retry_after) from None
    return {**status, "error": get_text(status, "error").replace(token, "TOKEN")}


async def create_review(api: Api, kind: Kind, spec: Manifest) -> Manifest:
    """Create a review in the API server and return its status.

    Raises:
        ClusterUnavailableError: the API server is unreachable, or the operator may not create reviews.
    """
    manifest = {"apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
    try:
        answer = await api.create(kind, manifest)
    except (ForbiddenError, MissingKindError, NotFoundError) as error:
        raise ClusterUnavailableError(f"cannot request a {kind.name}: {error}") from error
    status = answer.get("status")
    return status if isinstance(status, dict) else {}
