"""Kueue's Workloads of suspended JobSets, read on demand: without Kueue, no request and no watch exists for them."""

import asyncio
from collections.abc import Iterable, Sequence

from trainingjob_operator.core.manifests import get_text, get_value
from trainingjob_operator.core.names import QUEUE_LABEL
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    is_rejection,
    requested_wait_seconds,
)
from trainingjob_operator.shell.kinds import WORKLOAD
from trainingjob_operator.shell.logging_setup import Log

WORKLOADS_SECONDS = 5.0
"""Lifetime of the Workloads of a job in memory."""
LAST_KNOWN_SECONDS = 60.0
"""Time for which the last known Workloads replace those of a failed request."""
OUTAGE_RETRY_SECONDS = 5.0
"""Seconds without a request after the API server could not answer one."""
RETRY_SECONDS = 60.0
"""Seconds without a request after the API server rejected one, or does not serve Workloads."""
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
"""Set by Kueue on Workloads: the UID of the JobSet."""
ALL_NAMESPACES = ""

log = Log("workloads")


class WorkloadReader:
    """Reads the Workloads of JobSets that Kueue has suspended."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._retry_at: dict[str, float] = {}  # by namespace
        self._known: dict[str, tuple[float, tuple[Manifest, ...]]] = {}  # by the UID of the JobSet, with the read time

    async def read(self, namespace: str, jobsets: Iterable[Manifest]) -> tuple[Manifest, ...]:
        """Return the Workloads of the suspended JobSets with a queue; empty if there are none, or if they are unknown.

        Messages and a release of slices depend on them, but no world does. A failed request is therefore no error.
        """
        uids = sorted(get_text(jobset, "metadata", "uid") for jobset in jobsets if _is_suspended_in_queue(jobset))
        now = asyncio.get_running_loop().time()
        self._known = {uid: entry for uid, entry in self._known.items() if now - entry[0] < LAST_KNOWN_SECONDS}
        is_current = all(uid in self._known and now - self._known[uid][0] < WORKLOADS_SECONDS for uid in uids)
        retry_at = max(self._retry_at.get(scope, 0.0) for scope in (ALL_NAMESPACES, namespace))
        if not is_current and now >= retry_at:
            await self._list(namespace, uids)
        return tuple(workload for uid in uids if uid in self._known for workload in self._known[uid][1])

    async def _list(self, namespace: str, uids: Sequence[str]) -> None:
        """Update the known Workloads of JobSets. After a failed request, the last known ones stay."""
        requested_at = asyncio.get_running_loop().time()
        workloads: list[Manifest] = []
        try:
            async for page in self._api.list_pages(
                WORKLOAD, namespace, labels=f"{JOB_UID_LABEL} in ({','.join(uids)})"
            ):
                workloads += page.items
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot read Workloads", namespace=namespace, error=str(error))
            scope = namespace if is_rejection(error) else ALL_NAMESPACES
            self._retry_at[scope] = asyncio.get_running_loop().time() + _retry_delay(error)
            return
        for uid in uids:
            owned = (item for item in workloads if get_text(item, "metadata", "labels", JOB_UID_LABEL) == uid)
            self._known[uid] = requested_at, tuple(owned)


def _retry_delay(error: Exception) -> float:
    if is_rejection(error) or isinstance(error, MissingKindError):
        return RETRY_SECONDS
    return max(OUTAGE_RETRY_SECONDS, requested_wait_seconds(error))


def _is_suspended_in_queue(jobset: Manifest) -> bool:
    is_suspended = get_value(jobset, "spec", "suspend") is True
    return is_suspended and bool(get_text(jobset, "metadata", "labels", QUEUE_LABEL))
