"""Requests about a job's children that the API server rejected last, and when they may be repeated.

Causes are quotas, permissions, policies and failing admission webhooks. Host reports trigger many reconciles a second,
so a rejected request is repeated only after `RETRY_SECONDS`.
"""

from collections.abc import Callable, Collection
from datetime import datetime

RETRY_SECONDS = 10.0
"""Seconds after a rejection before the request is repeated."""


class RejectedRequests[P]:
    """Rejected requests by the UID of their job and by a key in the job. Each has a problem for the job's status."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._jobs: dict[str, dict[str, tuple[P, datetime]]] = {}  # a job without rejections has no entry

    def list_problems(self, uid: str) -> list[P]:
        """Return the problems of a job's rejected requests, in the order of the first rejections."""
        return [problem for problem, _ in self._jobs.get(uid, {}).values()]

    def is_recent(self, uid: str, key: str) -> bool:
        """Return whether a request was rejected just now, so that it must not be repeated yet."""
        rejection = self._jobs.get(uid, {}).get(key)
        if rejection is None:
            return False
        return abs((self._now() - rejection[1]).total_seconds()) < RETRY_SECONDS  # the clock can be set back

    def add(self, uid: str, key: str, problem: P) -> None:
        """Record a rejection of now."""
        self._jobs.setdefault(uid, {})[key] = problem, self._now()

    def keep(self, uid: str, keys: Collection[str]) -> None:
        """Drop the rejections of a job for all other keys: these requests are not needed any more."""
        kept = {key: rejection for key, rejection in self._jobs.pop(uid, {}).items() if key in keys}
        if kept:
            self._jobs[uid] = kept

    def discard(self, uid: str, key: str) -> None:
        """Drop the rejection of a request that was accepted, if there is one."""
        self.keep(uid, self._jobs.get(uid, {}).keys() - {key})

    def forget(self, uid: str) -> None:
        """Drop all rejections of a job."""
        self._jobs.pop(uid, None)
