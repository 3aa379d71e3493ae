"""The issuer of ServiceAccount tokens: its keys, read from the API server, and the accounts that it confirmed.

Every ServiceAccount may read the keys by default. If they are unreadable, or if a token has another issuer or an
unknown key, the API server reviews each token.

A signature cannot show that its ServiceAccount was deleted, or its key withdrawn. So a TokenReview of one token
confirms each account, with the key that signed the token, for all tokens of that account.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from math import inf

from trainingjob_operator.shell.account_tokens import (
    Account,
    Issuer,
    PodClaims,
    parse_issuer,
    parse_token,
    verify_token,
)
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, MissingKindError
from trainingjob_operator.shell.logging_setup import Log

CONFIGURATION_PATH = "/.well-known/openid-configuration"
KEYS_PATH = "/openid/v1/jwks"
READ_INTERVAL_SECONDS = 10.0
"""Minimum time between two reads of the keys. Callers choose the key IDs of their tokens."""
FAILED_INTERVAL_SECONDS = 300.0
"""Time from a failed read to the next one."""
CONFIRMED_SECONDS = 60.0
"""Time for which a TokenReview confirms an account."""
DENIED_SECONDS = 5.0
MAX_ACCOUNTS = 8192

log = Log("issuer")


class TokenIssuer:
    """Verifies tokens with the issuer's keys, which it reads again for a token with an unknown key."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._issuer: Issuer | None = None
        self._next_read = -inf
        self._read_lock = asyncio.Lock()

    async def verify(self, token: str, audience: str) -> PodClaims | None:  # None: the API server must review it
        """Return the claims of a token for an audience, if the issuer's keys can verify it."""
        parsed = parse_token(token)
        if parsed is None:
            return None
        if self._issuer is None or parsed.key_id not in self._issuer.keys:
            await self._read_keys(parsed.key_id)
        if self._issuer is None:
            return None
        return verify_token(parsed, self._issuer, audience, self._api.clock.now().timestamp())

    async def _read_keys(self, key_id: str) -> None:
        async with self._read_lock:
            now = asyncio.get_running_loop().time()
            if now < self._next_read or (self._issuer and key_id in self._issuer.keys):
                return
            self._next_read = now + READ_INTERVAL_SECONDS
            try:
                issuer = parse_issuer(
                    await self._api.read_document(CONFIGURATION_PATH), await self._api.read_document(KEYS_PATH)
                )
            except (ClusterUnavailableError, MissingKindError, NotFoundError) as error:
                self._next_read = now + FAILED_INTERVAL_SECONDS
                log.warning(
                    "cannot read the keys of the token issuer; the API server reviews all tokens", error=str(error)
                )
                return
            if issuer is None:
                log.warning("the token issuer has no usable key; the API server reviews all tokens")
            self._issuer = issuer


class ConfirmedAccounts:
    """Accounts that a TokenReview confirmed or denied a short time ago."""

    def __init__(self) -> None:
        self._results: OrderedDict[Account, tuple[float, bool]] = OrderedDict()
        self._reviews: dict[Account, asyncio.Task[bool]] = {}

    async def is_confirmed(self, account: Account, review: Callable[[], Awaitable[bool]]) -> bool:
        """Return the recent answer about an account, or that of `review`, which all concurrent callers share.

        Raises:
            Exception: an error of `review`, which is not kept.
        """
        expires_at, is_confirmed = self._results.get(account, (-inf, False))
        if asyncio.get_running_loop().time() < expires_at:
            return is_confirmed
        if account not in self._reviews:
            task = asyncio.ensure_future(self._review(account, review))
            self._reviews[account] = task
            task.add_done_callback(lambda finished: self._forget(account, finished))
        return await asyncio.shield(self._reviews[account])

    async def _review(self, account: Account, review: Callable[[], Awaitable[bool]]) -> bool:
        started_at = asyncio.get_running_loop().time()
        is_confirmed = await review()
        self._results.pop(account, None)
        self._results[account] = (started_at + (CONFIRMED_SECONDS if is_confirmed else DENIED_SECONDS), is_confirmed)
        if len(self._results) > MAX_ACCOUNTS:
            self._results.popitem(last=False)
        return is_confirmed

    def _forget(self, account: Account, task: asyncio.Task[bool]) -> None:
        del self._reviews[account]
        if not task.cancelled():
            task.exception()  # its callers raise it, if any is left
