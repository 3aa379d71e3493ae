"""Reconciler of one job: observe, decide, write the status once, publish the directive, create and delete children.

The order of the steps prevents two active worlds:

1. Write the decision to the status, with the `resourceVersion` of the read as precondition.
2. Publish the directive to the hosts.
3. Create missing children. The API server can reject a creation, which does not delay the world.
4. Delete obsolete children.

If a reconcile stops between two steps, the next one observes the finished steps and does the rest. A new operator needs
no state from the memory of its predecessor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from weakref import WeakValueDictionary

from trainingjob_api.problem import Problem
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.catalog import BUILTIN, Catalog
from trainingjob_operator.core.decide.child_maintenance import ChildOperation, list_child_operations
from trainingjob_operator.core.decide.decisions import Claim, DeleteExpired
from trainingjob_operator.core.decide.drill_injection import list_pods_to_delete, operator_pause_seconds, refuse_drill
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value
from trainingjob_operator.core.observe.observed import list_recorded_nodes
from trainingjob_operator.core.observe.ownership import filter_owned
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.observe.workloads import describe_ignored_keys
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.pod_groups import describe_unknown_versions
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_events import (
    JobEvent,
    list_events,
    list_recreation_events,
    make_directive,
)
from trainingjob_operator.core.report.job_status import blocked_status, finished_status
from trainingjob_operator.core.report.rejections import join_rejections
from trainingjob_operator.core.validation.queue_limits import describe_queue_limits
from trainingjob_operator.core.validation.queue_state import QueueConfig
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.check_pool import CheckCpuLimitError
from trainingjob_operator.shell.child_deletion import ChildDeleter
from trainingjob_operator.shell.children import ChildCreator, ServedVersions
from trainingjob_operator.shell.cold_cache import ColdCache
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import (
    Children,
    Cluster,
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    JobKey,
    MissingKindError,
)
from trainingjob_operator.shell.invalid_jobs import InvalidJobs
from trainingjob_operator.shell.job_evaluation import (
    FORMING_REQUEUE_SECONDS,
    IDLE_REQUEUE_SECONDS,
    evaluate,
    postponable_seconds,
    requeue_delay,
    run_part,
    seconds_until_expiry,
)
from trainingjob_operator.shell.large_jobs import LargeJobs
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.rejected_requests import RETRY_SECONDS
from trainingjob_operator.shell.status_writer import StatusWriter

MAX_CONFLICT_ATTEMPTS = 5
EXPIRED_RETRY_SECONDS = 60.0
"""Seconds until the next attempt to delete an expired job whose deletion was rejected."""

type Check = Callable[[str, str, object], Awaitable[ValidationResult]]
"""Check a job by namespace, name and raw spec. Raises `CheckCpuLimitError` above the CPU time limit."""

log = Log("reconcile")


type CheckAccount = Callable[[Manifest], Awaitable[Problem | None]]
type ReadQueue = Callable[[str, str | None], Awaitable[QueueConfig]]


async def _allow_any_account(job: Manifest) -> Problem | None:
    return None


async def _serve_no_pod_groups() -> tuple[str, ...]:
    return ()


async def _assume_no_queue(namespace: str, name: str | None) -> QueueConfig:
    return QueueConfig()


class Reconciler:
    """Reconciles TrainingJobs."""

    def __init__(
        self,
        cluster: Cluster,
        hub: Hub,
        settings: Callable[[], RenderSettings],
        now: Callable[[], datetime],
        catalog: Catalog = BUILTIN,
        clock_adjustment: Callable[[], float] = lambda: 0.0,
        check: Check | None = None,  # None: check in this process
        check_account: CheckAccount = _allow_any_account,
        read_queue: ReadQueue = _assume_no_queue,
        pod_group_versions: ServedVersions = _serve_no_pod_groups,
    ) -> None:
        """Reconcile with a cluster, and publish through a hub. `settings` may change while the operator runs.

        `check_account` returns why a job must not use its ServiceAccount, or None. `read_queue` returns the
        objects behind a namespace and a LocalQueue; empty: unknown, or the job has no queue.
        `pod_group_versions` returns the versions in which the API server serves PodGroups of the Kubernetes scheduler.
        `clock_adjustment` returns the total adjustment of the clock of `now` in seconds since the process started.
        """
        self._cluster = cluster
        self._hub = hub
        self._settings = settings
        self._child_creator = ChildCreator(cluster, settings, now, pod_group_versions)
        self._child_deleter = ChildDeleter(cluster, now)
        self._pod_group_versions = pod_group_versions
        self._now = now
        self._check_job = check or _check_in_process(catalog)
        self._check_account = check_account
        self._read_queue = read_queue
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._check_results: ColdCache[tuple[int, ValidationResult]] = ColdCache()
        self._statuses = StatusWriter(cluster, now, clock_adjustment)
        self._invalid_jobs = InvalidJobs(
            hub, self._statuses, self._child_deleter, self._read_children, self._emit_events, self._last_rejection
        )
        self._uids: dict[tuple[str, str], str] = {}
        self.large_jobs = LargeJobs(hub, now)

    async def reconcile(self, namespace: str, name: str) -> float | None:  # None: the job was deleted
        """Reconcile a job and return the seconds until the next reconcile.

        Raises:
            ClusterUnavailableError: the API server is unreachable; a later reconcile does the remaining steps.
            ForbiddenError: the API server rejects the write of the status; a later reconcile does the rest.
            MissingKindError: the API server no longer serves a kind; a later reconcile does the rest.
        """
        self.large_jobs.begin_reconcile(namespace, name)
        lock = self._locks.setdefault((namespace, name), asyncio.Lock())
        async with lock:
            for _ in range(MAX_CONFLICT_ATTEMPTS):
                with suppress(ConflictError):  # another client wrote the object: read and decide again
                    return await self._reconcile_once(namespace, name)
        return FORMING_REQUEUE_SECONDS

    async def _reconcile_once(self, namespace: str, name: str) -> float | None:
        job = await self._cluster.read_job(namespace, name)
        uid = get_text(job, "metadata", "uid")
        self._drop_former_job(namespace, name, uid)
        if job is None:
            return None
        if get_value(job, "metadata", "deletionTimestamp"):
            return IDLE_REQUEUE_SECONDS  # the garbage collector deletes its children
        if pause := self._hub.paused_seconds((namespace, uid)):
            return pause
        result = await self._check(uid, job)
        if result.plan is None:
            return await self._report_invalid(job, result)
        if problem := await self._check_account(job):
            delay = await self._report_invalid(job, replace(result, plan=None, problems=(problem,)))
            return None if delay is None else min(delay, IDLE_REQUEUE_SECONDS / 10)
        try:
            children = await self._read_children(job)
        except MissingKindError as error:
            message = f"JobSet is not installed: install it ({error})"
            status, now = self._statuses.newest(uid, job)
            if status.completion_time is not None:
                return await self._report_finished(job, status, status.completion_time, now)
            heartbeats = self._hub.heartbeat_state(_job_key(job))
            status = blocked_status(status, Reason.JOBSET_MISSING, message, heartbeats, _generation(job), now)
            await self._statuses.write_if_changed(job, uid, status)
            return IDLE_REQUEUE_SECONDS / 10
        return await self._act(job, result.plan, result.warnings, children)

    async def _act(self, job: Manifest, plan: Plan, warnings: Sequence[Problem], children: Children) -> float | None:
        """Observe, decide and act once for a job with a valid spec."""
        namespace, name, uid = (get_text(job, "metadata", key) for key in ("namespace", "name", "uid"))
        queue = plan.spec.scheduling.queue_name
        config = await self._read_queue(namespace, queue)
        limits = describe_queue_limits(plan, config, self._settings().elastic_workload_priority)
        groups = () if queue else await self._describe_pod_groups(plan)
        warning_texts = (*(str(warning) for warning in warnings), *describe_ignored_keys(job, queue), *limits, *groups)
        status, now = self._statuses.newest(uid, job)
        heartbeats, refusal = self._hub.heartbeat_state(_job_key(job)), self._last_rejection(uid)
        pod_reader = self.large_jobs.find_reader(namespace, name, len(children.pods))
        seen, decision, new_status = await evaluate(
            plan, job, status, children, heartbeats, now, warning_texts, refusal, pod_reader
        )
        if isinstance(decision, DeleteExpired):
            return await self._delete_expired(job)
        operations = list_child_operations(plan, seen, decision)
        try:
            job = await self._statuses.write_if_changed(job, uid, new_status)
        except ClusterUnavailableError:
            if isinstance(decision, Claim):  # the API server may have stored the claim
                self._hub.retire_generation(_job_key(job), decision.world.generation)
            raise
        self._hub.publish(_job_key(job), make_directive(plan, seen, decision, new_status))
        pods_to_delete, new_rejection = list_pods_to_delete(seen, new_status), None
        deleted: tuple[ChildOperation, ...] = ()
        try:
            new_rejection = await self._child_creator.create_missing(plan, seen, children, operations)
            deleted, deletion_rejection = await self._child_deleter.delete_obsolete(uid, operations)
            new_rejection = join_rejections(new_rejection, deletion_rejection)
            if drill_refusal := await self._child_deleter.delete_drill_pods(pods_to_delete):
                new_status = refuse_drill(seen, new_status, drill_refusal)
                job = await self._statuses.write_if_changed(job, uid, new_status)
        finally:  # no later reconcile has the events of this decision
            events = list_events(plan, seen, decision, new_status, new_rejection)
            await self._emit_events(job, (*events, *list_recreation_events(deleted)))
        if pause := operator_pause_seconds(seen, new_status):
            self._hub.pause_job(_job_key(job), pause)
            self._statuses.forget(uid)
            return pause
        rejection = self._last_rejection(uid)
        has_outdated_status = new_rejection or rejection != refusal
        if pods_to_delete or has_outdated_status or self._child_creator.has_conflict(uid):
            return FORMING_REQUEUE_SECONDS  # the next reconcile reads the result
        if rejection:
            return min(requeue_delay(plan, seen, decision, new_status, now), RETRY_SECONDS)
        # Of thousands of hosts, one report is always old.
        if pod_reader and (
            postponable := await run_part(lambda: postponable_seconds(plan, seen, decision), pauses=True)
        ):
            self.large_jobs.postpone(namespace, name, _job_key(job), postponable)
            return min(postponable, max(self._hub.seconds_until_silence(_job_key(job)), FORMING_REQUEUE_SECONDS))
        return requeue_delay(plan, seen, decision, new_status, now)

    async def _report_finished(
        self, job: Manifest, status: TrainingJobStatus, completion_time: str, now: datetime
    ) -> float | None:  # None: the job is deleted
        """Keep the outcome of a finished job without a plan or without JobSet, and delete the job once it expires."""
        await self._statuses.write_if_changed(
            job, get_text(job, "metadata", "uid"), finished_status(status, _generation(job))
        )
        delay = seconds_until_expiry(get_int(job, "spec", "ttlSecondsAfterFinished"), completion_time, now)
        return await self._delete_expired(job) if delay <= 0.0 else min(delay, IDLE_REQUEUE_SECONDS)

    async def _delete_expired(self, job: Manifest) -> float | None:  # None: the job is deleted
        try:
            await self._cluster.delete(job)
        except ForbiddenError as error:
            message = f"the API server rejects the deletion of this job after `spec.ttlSecondsAfterFinished`: {error}"
            await self._emit_events(job, (JobEvent(Reason.DELETION_REJECTED, message, is_warning=True),))
            return EXPIRED_RETRY_SECONDS
        return None

    async def _report_invalid(self, job: Manifest, result: ValidationResult) -> float | None:  # None: it is deleted
        """Write the problems of an invalid spec to the status. A finished job still expires."""
        uid = get_text(job, "metadata", "uid")
        status, now = self._statuses.newest(uid, job)
        if status.completion_time is not None:
            return await self._report_finished(job, status, status.completion_time, now)
        problems = [str(problem) for problem in result.problems]
        return await self._invalid_jobs.report(job, uid, _job_key(job), _generation(job), problems)

    async def _read_children(self, job: Manifest) -> Children:
        namespace, name, uid = (get_text(job, "metadata", key) for key in ("namespace", "name", "uid"))
        status, _ = self._statuses.newest(uid, job)
        children = await self._cluster.read_children(namespace, uid, list_recorded_nodes(status))
        return filter_owned(children, name, uid)

    async def _emit_events(self, job: Manifest, events: Sequence[JobEvent]) -> None:
        namespace, name = get_text(job, "metadata", "namespace"), get_text(job, "metadata", "name")
        for event in events:
            log.info("event", namespace=namespace, job=name, reason=event.reason, text=event.message)
            with suppress(ClusterUnavailableError):  # no logic depends on an event
                await self._cluster.emit(job, warning=event.is_warning, reason=event.reason, message=event.message)

    async def _check(self, uid: str, job: Manifest) -> ValidationResult:
        generation = _generation(job)
        cached = self._check_results.get(uid)
        if cached and cached[0] == generation:
            return cached[1]
        namespace, name, spec = (
            get_text(job, "metadata", "namespace"),
            get_text(job, "metadata", "name"),
            get_value(job, "spec"),
        )
        try:
            result = await self._check_job(namespace, name, spec)
        except CheckCpuLimitError as error:  # cached, since the same spec fails again
            message = f"{error}. Write `spec.parallelism.ici` instead of `strategy: auto`, or allow fewer slice counts."
            result = ValidationResult(None, None, (Problem("spec", "", message),), ())
        self._check_results[uid] = (generation, result)
        return result

    async def _describe_pod_groups(self, plan: Plan) -> tuple[str, ...]:
        with suppress(ClusterUnavailableError):  # only a creation must wait until the versions are known
            return describe_unknown_versions(plan, await self._pod_group_versions())
        return ()

    def _last_rejection(self, uid: str) -> ObjectProblem | None:  # None: nothing is rejected
        """Return which creations and deletions of a job's children the API server rejected last."""
        return join_rejections(self._child_creator.last_rejection(uid), self._child_deleter.last_rejection(uid))

    def _drop_former_job(self, namespace: str, name: str, uid: str) -> None:
        """Drop the state of a deleted job with this name."""
        former_uid = self._uids.pop((namespace, name), "")
        if former_uid and former_uid != uid:
            self.large_jobs.forget(namespace, name)
            self._check_results.pop(former_uid)
            self._statuses.forget(former_uid)
            self._child_creator.forget(former_uid)
            self._child_deleter.forget(former_uid)
            self._hub.drop_job((namespace, former_uid))
        if uid:
            self._uids[namespace, name] = uid


def _check_in_process(catalog: Catalog) -> Check:
    """Return a check that runs in this process."""

    async def check(namespace: str, name: str, spec: object) -> ValidationResult:
        return validate_job(name, spec, catalog, namespace)

    return check


def _generation(job: Manifest) -> int:
    return get_int(job, "metadata", "generation") or 0


def _job_key(job: Manifest) -> JobKey:
    return get_text(job, "metadata", "namespace"), get_text(job, "metadata", "uid")
