"""Label of the leader's pod, by which the Service routes agents to it.

Every replica is ready, so that rollouts and disruption budgets work. Only the leader can answer agents. A new leader
labels the pod it runs in, then removes the label from the pods of former leaders: a lost node needs no timeout.
"""

import asyncio
import contextlib
from collections.abc import Callable

from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.api_errors import NotFoundError
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)
from trainingjob_operator.shell.kinds import POD
from trainingjob_operator.shell.logging_setup import Log

LEADER_LABEL = "trainingjob.dev/leader"
REFRESH_SECONDS = 10.0
RETRY_SECONDS = 1.0

_PATH = f"/metadata/labels/{LEADER_LABEL.replace('/', '~1')}"

log = Log("lease")


class LeaderLabel:
    """Keeps the label on one operator's pod while that operator leads."""

    def __init__(
        self, api: Api, namespace: str, pod: str, is_leading: Callable[[], bool], on_labelled: Callable[[], None]
    ) -> None:
        """Label a pod of the operator's namespace. `on_labelled` is called when agents can reach it from now on."""
        self._api = api
        self._namespace = namespace
        self._pod = pod
        self._is_leading = is_leading
        self._on_labelled = on_labelled
        self._elected = asyncio.Event()
        self._last_problem = ""

    def wake(self) -> None:
        """Label the pod at once: this operator was elected."""
        self._elected.set()

    async def run(self) -> None:
        """Label the pod after each election, and repair the labels periodically. Never returns."""
        while True:
            is_done = await self.refresh() if self._is_leading() else True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS if is_done else RETRY_SECONDS):
                    await self._elected.wait()
            self._elected.clear()

    async def refresh(self) -> bool:
        """Write the labels that are wrong. Return whether they are right now."""
        try:
            await self._write()
            problem = ""
        except (ClusterUnavailableError, ConflictError, ForbiddenError, MissingKindError, NotFoundError) as error:
            problem = str(error)
        if problem and problem != self._last_problem:  # log a lasting problem only once
            log.warning("cannot label the leader's pod", pod=self._pod, error=problem)
        self._last_problem = problem
        return not problem

    async def _write(self) -> None:
        pages = self._api.list_pages(POD, self._namespace, labels=f"{LEADER_LABEL}=true")
        labelled = [get_text(pod, "metadata", "name") async for page in pages for pod in page.items]
        if self._pod not in labelled:
            await self._patch(self._pod, {"op": "add", "path": _PATH, "value": "true"})
            log.info("agents are routed to this operator", pod=self._pod)
            self._on_labelled()
        for pod in labelled:
            if pod != self._pod:
                with contextlib.suppress(NotFoundError):
                    await self._patch(pod, {"op": "remove", "path": _PATH})

    async def _patch(self, pod: str, operation: Manifest) -> None:
        """Change a label. Raises `ClusterUnavailableError` if another operator may lead."""
        if not self._is_leading():
            raise ClusterUnavailableError("this operator is no longer the leader")
        await self._api.patch(POD, self._namespace, pod, [operation])
