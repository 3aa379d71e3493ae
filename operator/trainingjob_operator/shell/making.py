"""What a job lacks is created, and what the API server says where it refuses that.

A refusal is a quota, a right, a policy, or a webhook of somebody's that does not answer. It is remembered for people,
and asked again only after a while: a job's looks come with the reports of its hosts, which would be many a second.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import run_config
from trainingjob_operator.core.running.deciding.chores import Chore, CreateBase, CreateSlice
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.pods import Trouble
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.render.check import check_jobset
from trainingjob_operator.render.configmap import render_config_map
from trainingjob_operator.render.jobset import render_base_jobset, render_slice_jobset
from trainingjob_operator.render.settings import RenderSettings
from trainingjob_operator.shell.ports import Children, Cluster, ConflictError, ForbiddenError
from trainingjob_operator.shell.store import hash_data

REFUSED_SECONDS = 10.0
"""After which what was refused is asked for again."""


@dataclass(frozen=True)
class _Refusal:
    """Why the API server would not create a child of a job, and when it said so."""

    trouble: Trouble
    at: datetime


class Maker:
    """Creates the children of jobs. `settings` may change while the operator runs."""

    def __init__(self, cluster: Cluster, settings: Callable[[], RenderSettings], now: Callable[[], datetime]) -> None:
        """Create in a cluster, with times of a clock."""
        self._cluster = cluster
        self._settings = settings
        self._now = now
        self._refusals: dict[str, _Refusal] = {}

    def refusal(self, uid: str) -> Trouble | None:  # None: it was not
        """Return why a job's child could not be created when that was tried last."""
        refusal = self._refusals.get(uid)
        return refusal.trouble if refusal else None

    def forget(self, uid: str) -> None:
        """Drop what is known of a job that is gone."""
        self._refusals.pop(uid, None)

    async def make(
        self, plan: Plan, seen: Observed, children: Children, chores: tuple[Chore, ...]
    ) -> Trouble | None:  # None: nothing was refused now
        """Create what is missing, unless that was refused a moment ago; return in which words it is refused now.

        Raises:
            ClusterUnavailableError: the API server cannot be reached.
            MissingKindError: it does not know JobSets.
        """
        before, now = self._refusals.get(seen.uid), self._now()
        if before and abs((now - before.at).total_seconds()) < REFUSED_SECONDS:  # the clock may be set
            return None
        trouble = await self._try_to_make(plan, seen, children, chores)
        if trouble:
            self._refusals[seen.uid] = _Refusal(trouble, now)
        else:
            self.forget(seen.uid)
        return trouble

    async def _try_to_make(
        self, plan: Plan, seen: Observed, children: Children, chores: tuple[Chore, ...]
    ) -> Trouble | None:  # None: nothing was refused
        job = JobIdentity(name=seen.name, namespace=seen.namespace, uid=seen.uid)
        settings = self._settings()
        if seen.base is not None and seen.base.image:  # all hosts of a job run one program, whatever is installed now
            settings = replace(settings, trainer_image=seen.base.image)
        wanted = [chore for chore in chores if isinstance(chore, (CreateBase, CreateSlice))]
        try:
            if wanted or seen.base is not None:
                config = render_config_map(run_config(job, plan), settings)
                if all(hash_data(config) != hash_data(known) for known in children.config_maps):
                    await self._cluster.apply(config)
            for chore in wanted:
                jobset = (
                    render_base_jobset(job, plan, settings)
                    if isinstance(chore, CreateBase)
                    else render_slice_jobset(job, plan, settings, chore.number, chore.avoids)
                )
                if departures := check_jobset(jobset):
                    return Trouble(Reason.REFUSED, "; ".join(departures))
                with suppress(ConflictError):  # it is there; the next look sees it
                    await self._cluster.create(jobset)
        except ForbiddenError as error:
            return Trouble(Reason.REFUSED, str(error))
        return None
