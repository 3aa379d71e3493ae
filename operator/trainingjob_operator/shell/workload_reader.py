"""Kueue's Workloads of suspended JobSets, read on demand: without Kueue, no request and no watch exists for them."""

import asyncio
from collections.abc import Iterable

from trainingjob_operator.core.manifests import get_text, get_value
from trainingjob_operator.core.names import QUEUE_LABEL
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, Manifest, MissingKindError
from trainingjob_operator.shell.kinds import WORKLOAD
from trainingjob_operator.shell.logging_setup import Log

WORKLOADS_SECONDS = 5.0
"""Lifetime of the Workloads of a job in memory."""
RETRY_SECONDS = 60.0
"""Seconds without a request after the API server refused one, or does not serve Workloads."""
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
"""Set by Kueue on Workloads: the UID of the JobSet."""

log = Log("workloads")


class WorkloadReader:
    """Reads the Workloads of JobSets that Kueue has suspended."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._retry_at = 0.0
        self._cache: dict[str, tuple[float, tuple[Manifest, ...]]] = {}  # by the UIDs of the JobSets

    async def read(self, namespace: str, jobsets: Iterable[Manifest]) -> tuple[Manifest, ...]:
        """Return the Workloads of the suspended JobSets with a queue; empty if there are none, or if they are unknown.

        Messages and a release of slices depend on them, but no world does. A failed request is therefore no error.
        """
        uids = ",".join(
            sorted(get_text(jobset, "metadata", "uid") for jobset in jobsets if _is_suspended_in_queue(jobset))
        )
        now = asyncio.get_running_loop().time()
        self._cache = {key: entry for key, entry in self._cache.items() if now - entry[0] < WORKLOADS_SECONDS}
        if not uids or now < self._retry_at:
            return ()
        if uids not in self._cache:
            self._cache[uids] = now, await self._list(namespace, uids)
        return self._cache[uids][1]

    async def _list(self, namespace: str, uids: str) -> tuple[Manifest, ...]:
        workloads: list[Manifest] = []
        try:
            async for page in self._api.list_pages(WORKLOAD, namespace, labels=f"{JOB_UID_LABEL} in ({uids})"):
                workloads += page.items
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot read Workloads", namespace=namespace, error=str(error))
            self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
        return tuple(workloads)


def _is_suspended_in_queue(jobset: Manifest) -> bool:
    is_suspended = get_value(jobset, "spec", "suspend") is True
    return is_suspended and bool(get_text(jobset, "metadata", "labels", QUEUE_LABEL))
