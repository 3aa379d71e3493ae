"""Creation of a job's children, with a pause after the API server rejects one.

The operator shows the rejection in the job's status, and retries it when `RejectedRequests` allows that.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

from trainingjob_api.spec.data import Prepare
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.config_maps import hash_data, revision_of, select_config_maps
from trainingjob_operator.core.decide.child_maintenance import (
    ChildOperation,
    CreateBase,
    CreatePreparation,
    CreateSlice,
)
from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.core.pod_groups import select_version
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.rejections import explain_rejection
from trainingjob_operator.render.configmap import render_ca_config_map, render_config_map
from trainingjob_operator.render.jobset import render_base_jobset, render_slice_jobset
from trainingjob_operator.render.network_policy import render_network_policy
from trainingjob_operator.render.node_preference import NodePreference
from trainingjob_operator.render.pod_group import render_pod_group
from trainingjob_operator.render.pod_policy import check_jobset, check_preparation
from trainingjob_operator.render.preparation_job import render_preparation
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.interfaces import Children, Cluster, ConflictError, ForbiddenError
from trainingjob_operator.shell.rejected_requests import RejectedRequests

ALL_CHILDREN = ""
"""Key of the only rejection of a job: after one rejected creation, the operator creates none of its children."""

type Creation = CreateBase | CreateSlice | CreatePreparation
type ServedVersions = Callable[[], Awaitable[Collection[str]]]
"""Return the versions in which the API server serves a kind. Empty: none."""


class ChildCreator:
    """Creates the children of jobs. `settings` may change while the operator runs."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Callable[[], RenderSettings],
        now: Callable[[], datetime],
        pod_group_versions: ServedVersions,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pod_group_versions = pod_group_versions
        self._rejections: RejectedRequests[ObjectProblem] = RejectedRequests(now)
        self._conflicts: set[str] = set()

    def last_rejection(self, uid: str) -> ObjectProblem | None:  # None: not rejected
        """Return why the last creation of a job's children was rejected."""
        return next(iter(self._rejections.list_problems(uid)), None)

    def has_conflict(self, uid: str) -> bool:
        """Return whether a child existed already at the last creation of the job's children: reconcile again soon."""
        return uid in self._conflicts

    def forget(self, uid: str) -> None:
        """Drop the rejection of a job."""
        self._rejections.forget(uid)
        self._conflicts.discard(uid)

    async def create_missing(
        self, plan: Plan, seen: Observed, children: Children, operations: tuple[ChildOperation, ...]
    ) -> ObjectProblem | None:  # None: not rejected now
        """Create missing children, unless a recent attempt was rejected. Return the reason of a new rejection.

        Raises:
            ClusterUnavailableError: the API server is unreachable.
            MissingKindError: JobSet is not installed.
        """
        if self._rejections.is_recent(seen.uid, ALL_CHILDREN):
            return None
        creations = [
            operation for operation in operations if isinstance(operation, (CreateBase, CreateSlice, CreatePreparation))
        ]
        problem = None
        self._conflicts.discard(seen.uid)
        if creations or seen.base is not None:
            problem = await self._try_create(plan, seen, children, creations)
            problem = await self._try_publish_certificates(seen.namespace, children) or problem
        if problem:
            self._rejections.add(seen.uid, ALL_CHILDREN, problem)
        else:
            self._rejections.discard(seen.uid, ALL_CHILDREN)
        return problem

    async def _try_create(
        self, plan: Plan, seen: Observed, children: Children, creations: Sequence[Creation]
    ) -> ObjectProblem | None:  # None: not rejected
        job = JobIdentity(name=seen.name, namespace=seen.namespace, uid=seen.uid)
        settings = self._settings()
        # All pods have the same image, also after an upgrade of the operator and after a suspension.
        if image := (seen.base.image if seen.base else "") or seen.status.trainer_image:
            settings = replace(settings, trainer_image=image, trainer_images={})
        try:
            settings = replace(settings, config_map=await self._publish_config(job, plan, settings, children))
            if creations:
                settings = replace(settings, pod_group_version=select_version(await self._pod_group_versions()))
            for creation in creations:
                child, violations = _render_child(job, plan, settings, creation)
                if violations:
                    return ObjectProblem(Reason.CREATION_REJECTED, "; ".join(violations))
                group = {} if isinstance(creation, CreatePreparation) else render_pod_group(job, plan, settings, child)
                for manifest in filter(None, (group, child)):  # pods wait until their group exists
                    try:
                        await self._cluster.create(manifest)
                    except ConflictError:  # it exists; the next reconcile reads it
                        self._conflicts.add(seen.uid)
        except ForbiddenError as error:
            return ObjectProblem(Reason.CREATION_REJECTED, explain_rejection(str(error)))
        return None

    async def _publish_config(self, job: JobIdentity, plan: Plan, settings: RenderSettings, children: Children) -> str:
        """Return the name of the ConfigMap with the current RunConfig and policy, which is created if it is missing.

        Raises:
            ForbiddenError: the API server rejects it, or another object has its name.
        """
        config = build_run_config(job, plan)
        manifest = render_config_map(config, settings)
        newest = children.config_maps[-1] if children.config_maps else None
        if newest is not None:
            if hash_data(newest) == hash_data(manifest):
                return get_text(newest, "metadata", "name")
            manifest = render_config_map(config, settings, revision_of(newest, job.name, job.uid) + 1)
        if settings.network:  # first: the ConfigMap has the hash of an applied policy
            await self._cluster.apply(render_network_policy(job, settings.network))
        name = get_text(manifest, "metadata", "name")
        try:
            await self._cluster.create(manifest)
        except ConflictError as error:
            if error.existing is None:
                raise  # it was deleted in the meantime
            if not select_config_maps((error.existing,), job.name, job.uid):
                message = f"ConfigMap '{name}' exists, but has another owner or other content. Delete it."
                raise ForbiddenError(message) from error
        return name

    async def _try_publish_certificates(
        self, namespace: str, children: Children
    ) -> ObjectProblem | None:  # None: not rejected
        """Apply the certificates of a namespace unless its ConfigMap holds them."""
        if pem := self._settings().ca_pem:
            manifest = render_ca_config_map(namespace, pem)
            if children.certificates is None or hash_data(children.certificates) != hash_data(manifest):
                try:
                    await self._cluster.apply(manifest)
                except ForbiddenError as error:
                    return ObjectProblem(Reason.CREATION_REJECTED, explain_rejection(str(error)))
        return None


def _render_child(
    job: JobIdentity, plan: Plan, settings: RenderSettings, creation: Creation
) -> tuple[Manifest, list[str]]:
    """Return a missing child, and the violations of the policy for pods. Empty: it is allowed."""
    match creation:
        case CreatePreparation():
            preparation = render_preparation(job, plan, settings, plan.spec.data.prepare or Prepare())
            return preparation, check_preparation(preparation, plan.shape.profile)
        case CreateBase(disfavors):
            jobset = render_base_jobset(job, plan, settings, NodePreference(disfavors=disfavors))
        case CreateSlice(number, avoids, disfavors):
            jobset = render_slice_jobset(job, plan, settings, number, NodePreference(avoids, disfavors))
    return jobset, check_jobset(jobset, plan.shape.profile)
