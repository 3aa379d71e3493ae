"""Jobs whose spec cannot be planned: report the problems, and let their worlds train, complete, stop or leave.

A stored job becomes invalid with an upgrade of the operator, or when an administrator removes an accelerator.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.protocol import Directive
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.decide.child_maintenance import list_invalid_deletions
from trainingjob_operator.core.manifests import Manifest, get_value
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.pods import ObjectProblem, Pod, read_pods
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.invalid_completion import completed_status, is_complete
from trainingjob_operator.core.report.invalid_stop import describe_stop, find_stop, stopped_status
from trainingjob_operator.core.report.invalid_suspension import (
    find_suspension_end,
    make_leave_directive,
    rebuild_directive,
    resumed_status,
    suspended_status,
)
from trainingjob_operator.core.report.job_events import JobDirective, JobEvent, describe_outcome
from trainingjob_operator.core.report.job_status import invalid_status
from trainingjob_operator.core.report.outcome_messages import ALL_TRAINED
from trainingjob_operator.shell.child_deletion import ChildDeleter
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Children, JobKey, MissingKindError
from trainingjob_operator.shell.job_evaluation import (
    FORMING_REQUEUE_SECONDS,
    IDLE_REQUEUE_SECONDS,
    WAITING_REQUEUE_SECONDS,
)
from trainingjob_operator.shell.status_writer import StatusWriter

INVALID_REQUEUE_SECONDS = IDLE_REQUEUE_SECONDS / 10
"""Seconds between two reconciles of an invalid job with a world, whose step is shown to users."""

type ReadChildren = Callable[[Manifest], Awaitable[Children]]
type EmitEvents = Callable[[Manifest, Sequence[JobEvent]], Awaitable[None]]


@dataclass(frozen=True)
class _InvalidJob:
    """An invalid job at one moment. `children` and `pods` are None without JobSet, and where nothing needs them."""

    manifest: Manifest
    uid: str
    key: JobKey
    generation: int
    status: TrainingJobStatus
    children: Children | None
    pods: Sequence[Pod] | None
    heartbeats: HeartbeatState
    """Those after the children were read: hosts may have reported meanwhile."""
    directive: JobDirective | None
    now: datetime


class InvalidJobs:
    """Reports invalid jobs that are not finished."""

    def __init__(
        self,
        hub: Hub,
        statuses: StatusWriter,
        child_deleter: ChildDeleter,
        read_children: ReadChildren,
        emit_events: EmitEvents,
        last_rejection: Callable[[str], ObjectProblem | None],
    ) -> None:
        """Publish through a hub. `last_rejection` returns the last rejected creation or deletion of a job's UID."""
        self._hub = hub
        self._statuses = statuses
        self._child_deleter = child_deleter
        self._read_children = read_children
        self._emit_events = emit_events
        self._last_rejection = last_rejection

    async def report(self, job: Manifest, uid: str, key: JobKey, generation: int, problems: Sequence[str]) -> float:
        """Write the problems to the status and return the seconds until the next reconcile.

        A world of an earlier spec trains on, and `suspend` still releases all pods.
        """
        before, now = self._statuses.newest(uid, job)
        status = invalid_status(before, problems, self._hub.heartbeat_state(key), generation, now)
        if status.problems != before.problems:  # the phase of a job with a world does not show them
            text = "no world is started or recovered until the spec is valid: " + "; ".join(problems)
            await self._emit_events(job, (JobEvent(Reason.INVALID_SPEC, text, is_warning=True),))
        invalid = await self._observe(job, uid, key, generation, status, now)
        if is_complete(status, invalid.directive, invalid.heartbeats, generation):
            return await self._complete(invalid)
        if get_value(job, "spec", "suspend") is True:
            return await self._suspend(invalid)
        if await self._has_stopped(invalid):
            return FORMING_REQUEUE_SECONDS
        if invalid.directive and not self._hub.has_published(key):
            self._hub.publish(key, invalid.directive)
        await self._statuses.write_if_changed(job, uid, resumed_status(status, generation, now))
        return INVALID_REQUEUE_SECONDS if status.world else IDLE_REQUEUE_SECONDS

    async def _observe(
        self, job: Manifest, uid: str, key: JobKey, generation: int, status: TrainingJobStatus, now: datetime
    ) -> _InvalidJob:
        children, pods, directive = None, None, self._hub.last_published(key)
        if get_value(job, "spec", "suspend") is True or status.world is not None:
            with suppress(MissingKindError):  # without JobSet there are no hosts
                children = await self._read_children(job)
                pods = read_pods(children, now)
        heartbeats = self._hub.heartbeat_state(key)
        if pods is not None:
            directive = directive or rebuild_directive(status, uid, pods, heartbeats)
        return _InvalidJob(job, uid, key, generation, status, children, pods, heartbeats, directive, now)

    async def _complete(self, invalid: _InvalidJob) -> float:
        status = completed_status(invalid.status, invalid.generation, invalid.now)
        await self._statuses.write_if_changed(invalid.manifest, invalid.uid, status)
        self._hub.publish(invalid.key, JobDirective(Directive.FINISH, outcome=describe_outcome(status)))
        await self._emit_events(invalid.manifest, (JobEvent(Reason.COMPLETED, ALL_TRAINED),))
        return FORMING_REQUEUE_SECONDS

    async def _has_stopped(self, invalid: _InvalidJob) -> bool:
        """Report that the worlds of a job have ended, if they have, and release the hosts that remain in them."""
        if invalid.directive is None or invalid.pods is None:
            return False
        end = find_stop(invalid.directive, invalid.pods, invalid.heartbeats)
        if end is None:
            return False
        status = stopped_status(invalid.status, end, invalid.generation, invalid.now)
        await self._statuses.write_if_changed(invalid.manifest, invalid.uid, status)
        self._hub.publish(invalid.key, JobDirective(Directive.WAIT))
        event = JobEvent(Reason.INVALID_SPEC, f"training has stopped: {describe_stop(end)}", is_warning=True)
        await self._emit_events(invalid.manifest, (event,))
        return True

    async def _suspend(self, invalid: _InvalidJob) -> float:
        """Let the hosts of an invalid job leave, then delete its JobSets and its preparation."""
        uid, key, now, children = invalid.uid, invalid.key, invalid.now, invalid.children or Children()
        directive, heartbeats = invalid.directive or JobDirective(Directive.WAIT), invalid.heartbeats
        end = find_suspension_end(invalid.status, directive, heartbeats, invalid.pods or (), now)
        operations = list_invalid_deletions(children, uid, heartbeats, now) if end else ()
        has_children = bool(operations or children.pods)
        refusal = self._last_rejection(uid)
        status = suspended_status(invalid.status, end, refusal, invalid.generation, now, has_children=has_children)
        await self._statuses.write_if_changed(invalid.manifest, uid, status)
        self._hub.publish(key, JobDirective(Directive.WAIT) if end else make_leave_directive(directive))
        _, new_rejection = await self._child_deleter.delete_obsolete(uid, operations)
        if new_rejection:
            event = JobEvent(new_rejection.reason, new_rejection.message, is_warning=True)
            await self._emit_events(invalid.manifest, (event,))
        if new_rejection or self._last_rejection(uid) != refusal:
            return FORMING_REQUEUE_SECONDS
        return WAITING_REQUEUE_SECONDS if end is None or has_children else IDLE_REQUEUE_SECONDS
