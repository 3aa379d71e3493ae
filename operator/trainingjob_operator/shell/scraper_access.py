"""Access of scrapers to `/metrics`, by bearer token.

A scraper authenticates with a token for the API server, such as that of its ServiceAccount. The API server authorizes
it: the scraper needs the verb `get` on the non-resource URL `/metrics`. Other Kubernetes components do the same.
Without an answer of the API server, no scraper has access.
"""

from enum import Enum
from http import HTTPStatus

from aiohttp import web

from trainingjob_operator.core.manifests import get_text, get_value
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import BusyError, ClusterUnavailableError
from trainingjob_operator.shell.kinds import ACCESS_REVIEW
from trainingjob_operator.shell.reviews import (
    MAX_TOKEN,
    CacheLimits,
    TokenCache,
    bearer_token,
    create_review,
    review_token,
)

METRICS_PATH = "/metrics"
LIMITS = CacheLimits(accepted_seconds=60.0, rejected_seconds=10.0, max_reviews=2)
"""A revoked right is in effect within a minute. Unknown tokens cost the API server at most two requests at a time."""


class Access(Enum):
    """Result of the reviews of one token."""

    GRANTED = HTTPStatus.OK
    UNAUTHENTICATED = HTTPStatus.UNAUTHORIZED
    FORBIDDEN = HTTPStatus.FORBIDDEN


class ScraperAccess:
    """Checks scrapers with TokenReviews and SubjectAccessReviews, and a short-lived cache of their results."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cache = TokenCache[Access](LIMITS, lambda access: access is Access.GRANTED)

    async def require(self, request: web.Request) -> None:
        """Return if the caller of a request may read the metrics.

        Raises:
            web.HTTPUnauthorized: the request has no valid token.
            web.HTTPForbidden: the user of the token has no right to read the metrics.
            web.HTTPTooManyRequests: too many unknown tokens wait for a review.
            web.HTTPServiceUnavailable: the API server cannot review the token now.
        """
        token = bearer_token(request)
        if not token or len(token) > MAX_TOKEN:
            raise _unauthorized("a bearer token is needed")
        try:
            access = await self._cache.find(token, request.remote or "", self._review)
        except BusyError as error:
            raise web.HTTPTooManyRequests(text=f"cannot authenticate the caller now: {error}\n") from error
        except ClusterUnavailableError as error:
            raise web.HTTPServiceUnavailable(text="cannot authenticate the caller now\n") from error
        if access is Access.UNAUTHENTICATED:
            raise _unauthorized("the token is not valid for the API server")
        if access is Access.FORBIDDEN:
            right = f"the verb `get` on the nonResourceURL `{METRICS_PATH}`"
            raise web.HTTPForbidden(text=f"the user of the token needs {right}: bind trainingjob-metrics-reader\n")

    async def _review(self, token: str) -> Access:
        status = await review_token(self._api, token)
        user = get_text(status, "user", "username")
        if status.get("authenticated") is not True or not user:
            return Access.UNAUTHENTICATED
        spec = {
            "user": user,
            "uid": get_text(status, "user", "uid"),
            "groups": get_value(status, "user", "groups") or [],
            "extra": get_value(status, "user", "extra") or {},
            "nonResourceAttributes": {"path": METRICS_PATH, "verb": "get"},
        }
        allowed = (await create_review(self._api, ACCESS_REVIEW, spec)).get("allowed")
        return Access.GRANTED if allowed is True else Access.FORBIDDEN


def _unauthorized(message: str) -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(text=f"{message}\n", headers={"WWW-Authenticate": "Bearer"})
