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
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never
from weakref import WeakValueDictionary

from trainingjob_api.problem import Problem
from trainingjob_api.protocol import Directive
from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.core.manifests import Manifest, dig, number, text
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.remember import read_status, write_status
from trainingjob_operator.core.running.deciding.chores import (
    Chore,
    CreateBase,
    CreateSlice,
    DeleteJob,
    DeleteJobSet,
    DeletePod,
    list_chores,
)
from trainingjob_operator.core.running.deciding.decide import decide
from trainingjob_operator.core.running.deciding.decisions import Claim, Decision, Expire, Wait
from trainingjob_operator.core.running.deciding.strikes import find_pause, list_strikes, refuse_strike
from trainingjob_operator.core.running.judging.hang import seconds_left
from trainingjob_operator.core.running.observing.clocks import move_times
from trainingjob_operator.core.running.observing.observe import Observed, observe
from trainingjob_operator.core.running.observing.owned import keep_owned
from trainingjob_operator.core.running.observing.pods import read_pods
from trainingjob_operator.core.running.observing.seats import rebuild_world
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.running.telling.announce import (
    Bulletin,
    Happening,
    list_happenings,
    list_repairs,
    make_bulletin,
)
from trainingjob_operator.core.running.telling.status import blocked_status, invalid_status, next_status
from trainingjob_operator.core.running.telling.writing import is_worth_writing
from trainingjob_operator.core.times import seconds_between
from trainingjob_operator.core.validation.validate import Checked, check_job
from trainingjob_operator.render.settings import RenderSettings
from trainingjob_operator.shell.checking import CheckTooCostlyError
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.making import REFUSED_SECONDS, Maker
from trainingjob_operator.shell.ports import (
    Children,
    Cluster,
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    JobKey,
    MissingKindError,
)

IDLE_SECONDS = 300.0
"""Reconcile interval of a job that only an event can change, in case an event is lost."""
WAITING_SECONDS = 5.0
FORMING_SECONDS = 0.5
CONFLICT_TRIES = 5

type Check = Callable[[str, str, object], Awaitable[Checked]]
"""Check a job by namespace, name and raw spec. Raises `CheckTooCostlyError` above the CPU time limit."""

log = Log("reconcile")


@dataclass(frozen=True)
class _Memory:
    """Last written status of a job, and the newest status, whose minor changes are not written."""

    written: Manifest
    newest: TrainingJobStatus
    set_by: float
    """Total clock adjustment in seconds at the time of `newest`."""


type CheckAccount = Callable[[Manifest], Awaitable[Problem | None]]


async def _allow(job: Manifest) -> Problem | None:
    return None


class Reconciler:
    """Reconciles TrainingJobs."""

    def __init__(
        self,
        cluster: Cluster,
        hub: Hub,
        settings: Callable[[], RenderSettings],
        now: Callable[[], datetime],
        hardware: Hardware = BUILTIN,
        set_by: Callable[[], float] = lambda: 0.0,
        check: Check | None = None,  # None: check in this process
        check_account: CheckAccount = _allow,
    ) -> None:
        """Reconcile with a cluster, and publish through a hub. `settings` may change while the operator runs.

        `check_account` returns why a job must not use its ServiceAccount, or None.
        `set_by` returns the total adjustment of the clock of `now` in seconds since the process started.
        """
        self._cluster = cluster
        self._hub = hub
        self._maker = Maker(cluster, settings, now)
        self._now = now
        self._check_job = check or _check_here(hardware)
        self._set_by = set_by
        self._check_account = check_account
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._checked: dict[str, tuple[int, Checked]] = {}
        self._memories: dict[str, _Memory] = {}
        self._uids: dict[tuple[str, str], str] = {}

    async def reconcile(self, namespace: str, name: str) -> float | None:  # None: the job was deleted
        """Reconcile a job and return the seconds until the next reconcile.

        Raises:
            ClusterUnavailableError: the API server is unreachable; a later reconcile does the remaining steps.
            ForbiddenError: the API server rejects a write other than a creation; a later reconcile does the rest.
            MissingKindError: the API server no longer serves a kind; a later reconcile does the rest.
        """
        lock = self._locks.setdefault((namespace, name), asyncio.Lock())
        async with lock:
            for _ in range(CONFLICT_TRIES):
                with suppress(ConflictError):  # somebody else wrote: look again at what is there now
                    return await self._look(namespace, name)
        return FORMING_SECONDS

    async def _look(self, namespace: str, name: str) -> float | None:
        job = await self._cluster.read_job(namespace, name)
        uid = text(job, "metadata", "uid")
        self._forget_former(namespace, name, uid)
        if job is None:
            return None
        if dig(job, "metadata", "deletionTimestamp"):
            return IDLE_SECONDS  # the garbage collector deletes its children
        if away := self._hub.seconds_away((namespace, uid)):
            return away
        checked = await self._check(uid, job)
        if checked.plan is None:
            return await self._hold(job, checked)
        if problem := await self._check_account(job):
            return await self._hold(job, replace(checked, plan=None, problems=(problem,))) / 10
        try:
            children = await self._read_children(job)
        except MissingKindError as error:
            words = f"the cluster has no JobSet: install it ({error})"
            status, now = self._recall(uid, job)
            await self._write(job, uid, blocked_status(status, Reason.JOBSET_MISSING, words, _generation(job), now))
            return IDLE_SECONDS / 10
        return await self._step(job, checked.plan, checked.warnings, children)

    async def _step(self, job: Manifest, plan: Plan, warnings: Sequence[Problem], children: Children) -> float | None:
        """Observe, decide and act once for a job with a valid spec."""
        uid = text(job, "metadata", "uid")
        status, now = self._recall(uid, job)
        seen = observe(plan, job, status, children, self._hub.hearing(_key(job)), now)
        decision = decide(plan, seen, now)
        if isinstance(decision, Expire):
            await self._cluster.delete(job)
            return None
        chores = list_chores(plan, seen, decision)
        words = tuple(str(warning) for warning in warnings)
        fresh = next_status(plan, seen, decision, now, warnings=words, refusal=self._maker.refusal(uid))
        try:
            job = await self._write(job, uid, fresh)
        except ClusterUnavailableError:
            if isinstance(decision, Claim):  # the API server may have stored the claim
                self._hub.burn(_key(job), decision.world.generation)
            raise
        self._hub.publish(_key(job), make_bulletin(plan, seen, decision, fresh))
        refusal = await self._maker.make(plan, seen, children, chores)
        await self._clear(chores)
        strikes = list_strikes(seen, fresh)
        if refused := await self._strike(strikes):
            fresh = refuse_strike(seen, fresh, refused)
            job = await self._write(job, uid, fresh)
        happenings = list_happenings(plan, seen, decision, fresh, refusal)
        await self._tell(job, (*happenings, *list_repairs(chores)))
        if pause := find_pause(seen, fresh):
            self._hub.leave(_key(job), pause)
            self._memories.pop(uid, None)
            return pause
        if strikes or refusal:  # the next reconcile writes the rejection to the status
            return FORMING_SECONDS
        again = _next_look(plan, seen, decision, fresh, now)
        return min(again, REFUSED_SECONDS) if self._maker.refusal(uid) else again

    async def _hold(self, job: Manifest, checked: Checked) -> float:
        """Write the problems of an invalid spec to the status. A world of an earlier spec continues to train."""
        uid = text(job, "metadata", "uid")
        problems = [str(problem) for problem in checked.problems]
        status, _ = self._recall(uid, job)
        if status.world is not None and not self._hub.has_spoken(_key(job)):
            with suppress(MissingKindError):  # without JobSet there are no hosts
                children = await self._read_children(job)
                world = rebuild_world(status, uid, read_pods(children, self._now()))
                self._hub.publish(_key(job), Bulletin(Directive.TRAIN if world else Directive.WAIT, world))
        status, now = self._recall(uid, job)
        await self._write(job, uid, invalid_status(status, problems, _generation(job), now))
        return IDLE_SECONDS

    async def _read_children(self, job: Manifest) -> Children:
        namespace, name, uid = (text(job, "metadata", key) for key in ("namespace", "name", "uid"))
        return keep_owned(await self._cluster.read_children(namespace, uid), name, uid)

    async def _clear(self, chores: tuple[Chore, ...]) -> None:
        """Delete children that the written status no longer needs."""
        for chore in chores:
            match chore:
                case CreateBase() | CreateSlice():
                    pass  # the maker creates them
                case DeleteJobSet(jobset):
                    await self._cluster.delete(jobset.manifest)
                case DeleteJob(child):
                    await self._cluster.delete(child.manifest)
                case DeletePod(pod, force):
                    await self._cluster.delete(pod.manifest, grace_seconds=0 if force else None)
                case _:
                    assert_never(chore)

    async def _strike(self, strikes: Sequence[DeletePod]) -> str:
        """Delete the pods of a drill; return why the API server refuses to delete any of them, if it does."""
        refusals: list[str] = []
        for strike in strikes:
            try:
                await self._clear((strike,))
            except ForbiddenError as error:
                log.warning("the API server refused to delete a pod for a drill", pod=strike.pod.name, error=str(error))
                refusals.append(str(error))
        return refusals[0] if refusals and len(refusals) == len(strikes) else ""

    async def _tell(self, job: Manifest, happenings: Sequence[Happening]) -> None:
        namespace, name = text(job, "metadata", "namespace"), text(job, "metadata", "name")
        for one in happenings:
            log.info("event", namespace=namespace, job=name, reason=one.reason, text=one.message)
            with suppress(ClusterUnavailableError):  # no logic depends on an event
                await self._cluster.emit(job, warning=one.warning, reason=one.reason, message=one.message)

    async def _write(self, job: Manifest, uid: str, fresh: TrainingJobStatus) -> Manifest:
        """Write a status if its changes are significant, and keep it in memory in any case. Return the current job."""
        if is_worth_writing(read_status(job), fresh, self._now()):
            job = await self._cluster.write_status(job, write_status(fresh))
        self._memories[uid] = _Memory(dig(job, "status") or {}, fresh, self._memories[uid].set_by)
        return job

    def _recall(self, uid: str, job: Manifest) -> tuple[TrainingJobStatus, datetime]:
        """Return the newest status and the current time, both according to the current clock setting.

        The status in memory is valid only if the API server still holds the status that it is based on.
        """
        now, set_by = self._now(), self._set_by()
        written, memory = dig(job, "status") or {}, self._memories.get(uid)
        if memory is None or memory.written != written:
            memory = _Memory(written, read_status(job), set_by)
        newest = move_times(memory.newest, set_by - memory.set_by)
        self._memories[uid] = _Memory(written, newest, set_by)
        return newest, now

    async def _check(self, uid: str, job: Manifest) -> Checked:
        generation = _generation(job)
        known = self._checked.get(uid)
        if known and known[0] == generation:
            return known[1]
        namespace, name, spec = text(job, "metadata", "namespace"), text(job, "metadata", "name"), dig(job, "spec")
        try:
            checked = await self._check_job(namespace, name, spec)
        except CheckTooCostlyError as error:  # cached, since the same spec fails again
            message = f"{error}. Write `spec.parallelism.ici` instead of `strategy: auto`, or allow fewer slice counts."
            checked = Checked(None, None, (Problem("spec", "", message),), ())
        self._checked[uid] = (generation, checked)
        return checked

    def _forget_former(self, namespace: str, name: str, uid: str) -> None:
        """Drop the state of a deleted job with this name."""
        former = self._uids.pop((namespace, name), "")
        if former and former != uid:
            for memory in (self._checked, self._memories):
                memory.pop(former, None)
            self._maker.forget(former)
            self._hub.forget((namespace, former))
        if uid:
            self._uids[namespace, name] = uid


def _check_here(hardware: Hardware) -> Check:
    """Return a check that runs in this process."""

    async def check(namespace: str, name: str, spec: object) -> Checked:
        del namespace
        return check_job(name, spec, hardware)

    return check


def _next_look(plan: Plan, seen: Observed, decision: Decision, status: TrainingJobStatus, now: datetime) -> float:
    """Return the seconds until the decision can change without an event."""
    if status.completion_time is not None:
        ttl = plan.spec.ttl_seconds_after_finished
        left = IDLE_SECONDS if ttl is None else ttl - seconds_between(status.completion_time, now) + FORMING_SECONDS
        return min(max(left, FORMING_SECONDS), IDLE_SECONDS)
    if isinstance(decision, Wait) and seen.world is not None and decision.reason == Reason.TRAINING:
        oldest = max((seat.news.age for seat in seen.seats if seat.news), default=0.0)
        until_silent = max(plan.silence_seconds - oldest, FORMING_SECONDS)
        until_hung = max(seconds_left(plan, seen), 0.0)
        return min(until_silent, until_hung, WAITING_SECONDS)
    is_heard = any(news.age <= plan.silence_seconds for news in seen.hearing.news.values())
    if not is_heard and not seen.pods:  # events of the cluster wake the job
        return IDLE_SECONDS
    if not seen.hearing.news:
        return WAITING_SECONDS
    return FORMING_SECONDS


def _generation(job: Manifest) -> int:
    return number(job, "metadata", "generation") or 0


def _key(job: Manifest) -> JobKey:
    return text(job, "metadata", "namespace"), text(job, "metadata", "uid")
