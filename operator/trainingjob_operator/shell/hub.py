"""In-memory hub between agents and the reconciler: the newest report of each pod, and each job's published directive.

The hub makes no decisions. The reconciler reads reports, writes the status to the API server, and then publishes the
directive. The hub therefore never publishes a directive that is not in the status.

After a startup the hub has no answer until the first publication. Agents then continue with their last directive.
"""

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from trainingjob_api.drill import Drill
from trainingjob_api.inspection import Inspection, InspectionRequest
from trainingjob_api.protocol import FILE_PHASES, Answer, Directive, HostReport, Phase
from trainingjob_api.world import World
from trainingjob_operator.core.observe.heartbeats import HeartbeatState, LatestReport
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.shell.interfaces import Caller, JobKey

OUTAGE_SECONDS = 4.0
"""Seconds without a report from any host of a job after which the operator counts as unreachable."""
RETENTION_SECONDS = 600.0
"""Retention of the last report of a pod outside the world."""
STALE_CHECK_SECONDS = 60.0
"""Interval at which stale reports are dropped while the directive stays the same."""
REPORTS_PER_SECOND = 1500.0
"""Target of the number of reports per second. One of them takes about 0.3 ms of CPU time."""
MAX_HOLD_SECONDS = 2.0
"""Longest hold time of an answer with many hosts: half of `OUTAGE_SECONDS`."""
COUNT_SECONDS = 1.0
"""Interval at which the hosts of all jobs are counted."""
REPORT_DELAY_SECONDS = 0.05
"""Delay before an agent's next report. Short, since the operator holds each answer until it changes."""
PHASES_OUTSIDE_WORLD = (Phase.IDLE, Phase.LEFT, Phase.FAILED)
"""Phases outside a world, in which the readiness of a host's standby process counts as progress."""
ACTIVE_CPU_SECONDS = 10
"""CPU seconds that count as activity of a process. A process that only waits needs hours to use as many."""

type AnswerKey = tuple[str, Directive, int, bool, str, str, str, tuple[int, ...] | None]
"""Identity of an answer, whose change ends the long poll: agent process, directive, generation, whether to collect
diagnostics, drill ID, inspection ID, standby world and live slices."""


@dataclass(slots=True)
class _PodState:
    """Newest report of a pod, the times of its changes, and the key of its last answer."""

    report: HostReport
    reported_at: float
    progressed_at: float
    active_at: float
    last_answer_key: AnswerKey | None = None


@dataclass(slots=True)
class _JobState:
    """State of one job: its pods, its published directive and its simulated outage."""

    pod_states: dict[str, _PodState] = field(default_factory=dict)
    listening_since: float = 0.0
    last_report_at: float = -inf
    broadcast: JobDirective | None = None
    published_at: float = 0.0
    stale_dropped_at: float = -inf
    max_unconfirmed_generation: int = 0
    paused_until: float = -inf
    answer_changed: asyncio.Event | None = None  # None: no host waits for an answer
    directives: dict[str, JobDirective] = field(default_factory=dict)
    """The published directive for each pod that is a member of a world."""
    standby_worlds: dict[str, World] = field(default_factory=dict)
    """Published hot standby worlds by their pods."""
    answers: dict[object, Answer] = field(default_factory=dict)
    """Answers to the published directive that differ. Thousands of hosts share them."""


class Hub:
    """Reports and published directives of all jobs of this operator.

    `clock` returns monotonic seconds. `wake` is called with a job's namespace and name if a report needs a reconcile.
    """

    def __init__(self, clock: Callable[[], float], wake: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._jobs: dict[JobKey, _JobState] = {}
        self._silence_reset_at = -inf
        self._num_hosts = 0
        self._hosts_counted_at = -inf

    def reset_silence(self) -> None:
        """Restart the heartbeat timeouts of all jobs: the operator may have missed reports until now."""
        self._silence_reset_at = self._clock()

    def receive(self, caller: Caller, report: HostReport) -> None:
        """Store a host's report, and wake the reconciler if more than the progress changed."""
        now = self._clock()
        state = self._get_job_state(caller.job_key)
        if now - state.last_report_at > OUTAGE_SECONDS:
            _exclude_outage(state, now)
        state.last_report_at = now
        pod = state.pod_states.get(report.pod_uid)
        if pod is None:
            state.pod_states[report.pod_uid] = _PodState(report, now, now, now)
        elif pod.report is report:
            state.pod_states[report.pod_uid] = replace(pod, reported_at=now)
            return
        else:
            progressed_at = now if _progress_key(pod.report) != _progress_key(report) else pod.progressed_at
            active_at = (
                now if progressed_at == now or _activity_key(pod.report) != _activity_key(report) else pod.active_at
            )
            state.pod_states[report.pod_uid] = _PodState(report, now, progressed_at, active_at, pod.last_answer_key)
        if pod is None or needs_reconcile(pod.report, report):
            self._wake(caller.namespace, caller.job)

    async def answer(
        self, caller: Caller, instance: str, hold_seconds: float
    ) -> Answer | None:  # None: not published yet
        """Return the answer to a host as soon as it differs from the host's last answer, or after `hold_seconds`.

        A newer report of the same host ends the wait. The superseded answer does not count as delivered. With thousands
        of hosts, the answers of a world wait longer, though no longer than half of its heartbeat timeout, and each host
        is answered at another time.
        """
        state = self._get_job_state(caller.job_key)
        pod = state.pod_states.get(caller.pod_uid)
        try:
            async with asyncio.timeout(self._scale_hold_seconds(state, caller.pod_uid, hold_seconds)):
                while state.pod_states.get(caller.pod_uid) is pod and not _has_new_answer(
                    state, caller.pod_uid, instance
                ):
                    state.answer_changed = state.answer_changed or asyncio.Event()
                    await state.answer_changed.wait()
        except TimeoutError:
            pass
        if state.broadcast is None:
            return None
        answer = _find_answer(state, state.broadcast, caller.pod_uid)
        if pod is not None:
            pod.last_answer_key = _answer_key(instance, answer)
        return answer

    def heartbeat_state(self, job: JobKey) -> HeartbeatState:
        """Return the reports of a job, with their ages."""
        state = self._jobs.get(job)
        if state is None:
            return HeartbeatState()
        now = self._clock()
        latest_reports = {
            pod_uid: LatestReport(pod.report, now - pod.reported_at, now - pod.progressed_at, now - pod.active_at)
            for pod_uid, pod in state.pod_states.items()
        }
        return HeartbeatState(
            latest_reports=latest_reports,
            listening_seconds=now - max(state.listening_since, self._silence_reset_at) if state.pod_states else 0.0,
            seconds_since_publish=now - state.published_at if state.broadcast and state.broadcast.world else 0.0,
            max_unconfirmed_generation=state.max_unconfirmed_generation,
        )

    def seconds_until_silence(self, job: JobKey) -> float:
        """Return the seconds until a host of the world exceeds the heartbeat timeout. 0: one has, or no world runs."""
        state = self._jobs.get(job)
        if state is None or state.broadcast is None or state.broadcast.world is None:
            return 0.0
        report_times = (state.pod_states[uid].reported_at for uid in state.directives if uid in state.pod_states)
        now = self._clock()
        return max(min(report_times, default=now) + state.broadcast.heartbeat_timeout_seconds - now, 0.0)

    def has_published(self, job: JobKey) -> bool:
        """Return whether this operator has published a directive for the job since it became the leader."""
        return self.last_published(job) is not None

    def last_published(self, job: JobKey) -> JobDirective | None:  # None: not published
        """Return the directive that this operator has published for the job since it became the leader."""
        state = self._jobs.get(job)
        return state.broadcast if state else None

    def publish(self, job: JobKey, job_directive: JobDirective) -> None:
        """Publish a directive to a job's hosts. The status must already hold it."""
        state = self._jobs.setdefault(job, _JobState())
        if state.broadcast == job_directive:
            if self._clock() - state.stale_dropped_at >= STALE_CHECK_SECONDS:
                self._drop_stale_pods(state)
            return
        before = state.broadcast.world if state.broadcast else None
        if job_directive.world and (before is None or before.generation != job_directive.world.generation):
            state.published_at = self._clock()
        state.broadcast = job_directive
        standby_worlds = reversed(job_directive.standby_worlds)
        state.directives = job_directive.find_for_pods()
        state.standby_worlds = {member.pod_uid: standby for standby in standby_worlds for member in standby.members}
        state.answers = {}
        self._drop_stale_pods(state)
        _release_answers(state)

    def retire_generation(self, job: JobKey, generation: int) -> None:
        """Exclude a generation from new claims: the write of its claim failed with an unknown result."""
        state = self._jobs.setdefault(job, _JobState())
        state.max_unconfirmed_generation = max(state.max_unconfirmed_generation, generation)

    def pause_job(self, job: JobKey, seconds: float) -> None:
        """Simulate an operator outage for this job: drop its state, and answer no reports for `seconds`."""
        former_state = self._jobs.pop(job, _JobState())
        self._jobs[job] = _JobState(
            max_unconfirmed_generation=former_state.max_unconfirmed_generation, paused_until=self._clock() + seconds
        )
        former_state.broadcast = None
        former_state.pod_states.clear()  # ends the pending long polls without an answer
        _release_answers(former_state)

    def paused_seconds(self, job: JobKey) -> float:
        """Return the remaining seconds of the simulated outage of a job; 0: none."""
        state = self._jobs.get(job)
        return max(state.paused_until - self._clock(), 0.0) if state else 0.0

    def drop_job(self, job: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._jobs.pop(job, None)

    def clear(self) -> None:
        """Drop all state: another operator may have led, so the published directives may be outdated."""
        self._jobs.clear()

    def _scale_hold_seconds(self, state: _JobState, pod_uid: str, hold_seconds: float) -> float:
        """Return the hold time of an answer at the current number of hosts.

        A publication answers all hosts at once. With equal hold times, they would report at the same time from then on.
        The UID therefore sets the time of an answer within each interval of the longer hold time.
        """
        now = self._clock()
        if now - self._hosts_counted_at >= COUNT_SECONDS:
            self._num_hosts = sum(len(job.pod_states) for job in self._jobs.values())
            self._hosts_counted_at = now
        if state.broadcast is None or self._num_hosts <= REPORTS_PER_SECOND:
            return hold_seconds
        max_interval = min(state.broadcast.heartbeat_timeout_seconds / 2, MAX_HOLD_SECONDS)
        interval = max(hold_seconds, min(self._num_hosts / REPORTS_PER_SECOND, max_interval))
        return interval - (now - share_of_interval(pod_uid) * interval) % interval

    def _get_job_state(self, job: JobKey) -> _JobState:
        """Return the state of a job. A new state drops the states that late reports of deleted jobs created."""
        if job not in self._jobs:
            now = self._clock()
            for key, state in tuple(self._jobs.items()):
                is_needed = state.broadcast or state.max_unconfirmed_generation or state.paused_until > now
                if not is_needed and now - max(state.last_report_at, state.listening_since) > RETENTION_SECONDS:
                    del self._jobs[key]
        return self._jobs.setdefault(job, _JobState())

    def _drop_stale_pods(self, state: _JobState) -> None:
        state.stale_dropped_at = now = self._clock()
        for pod_uid, pod in tuple(state.pod_states.items()):
            if now - pod.reported_at > RETENTION_SECONDS and pod_uid not in state.directives:
                del state.pod_states[pod_uid]


def share_of_interval(name: str) -> float:
    """Return the share of an interval at which this name is due: from 0 to 1, the same in each process.

    Otherwise, all hosts or jobs with the same interval would be due at once.
    """
    return zlib.crc32(name.encode()) / 2**32


def _release_answers(state: _JobState) -> None:
    """End the wait of all hosts of a job for a change of their answers."""
    if state.answer_changed:
        state.answer_changed.set()
        state.answer_changed = None


def _exclude_outage(state: _JobState, now: float) -> None:
    """Exclude an operator outage from a job's timeouts.

    The heartbeat timeout restarts. The stall timeout excludes the outage but keeps the time before it, so that rare
    reports delay a stall timeout but cannot prevent it.
    """
    state.listening_since = now
    for pod in state.pod_states.values():
        pod.progressed_at += now - state.last_report_at - OUTAGE_SECONDS
        pod.active_at += now - state.last_report_at - OUTAGE_SECONDS


def _find_answer(state: _JobState, job_directive: JobDirective, pod_uid: str) -> Answer:
    """Return the answer to one host. Hosts with the same answer get the same object."""
    pod_directive = state.directives.get(pod_uid)
    pod = state.pod_states.get(pod_uid)
    is_member = pod_directive is not None and pod_directive.admits(pod.report.generation if pod else 0)
    job_directive = pod_directive or job_directive
    order = job_directive.injection_order
    drill = order.drill if order and pod_uid in order.pods else None
    inspection = _find_inspection(job_directive.inspection, job_directive.world, pod_uid) if is_member else None
    standby = state.standby_worlds.get(pod_uid)
    generation = job_directive.world.generation if job_directive.world else 0
    key = (is_member, generation, drill and drill.id, inspection and inspection.id, standby and standby.shadow)
    if key not in state.answers:
        state.answers[key] = _build_answer(job_directive, drill, inspection, standby, is_member=is_member)
    return state.answers[key]


def _build_answer(
    job_directive: JobDirective,
    drill: Drill | None,
    inspection: Inspection | None,
    standby: World | None,
    *,
    is_member: bool,
) -> Answer:
    """Return the answer to hosts of one directive. A host outside the world waits."""
    delay = REPORT_DELAY_SECONDS
    if job_directive.directive is Directive.FINISH:
        return Answer(directive=job_directive.directive, outcome=job_directive.outcome, report_again_seconds=delay)
    if job_directive.world is None or not is_member:
        return Answer(directive=Directive.WAIT, report_again_seconds=delay)
    return Answer(
        directive=job_directive.directive,
        world=job_directive.world,
        collect_diagnostics=job_directive.collects_diagnostics,
        drill=drill,
        inspection=inspection,
        moves=job_directive.moves,
        shadow=standby,
        live_slices=job_directive.live_slices,
        report_again_seconds=delay,
    )


def _find_inspection(request: InspectionRequest | None, world: World | None, pod_uid: str) -> Inspection | None:
    """Return the inspection of a host; None: it is not inspected."""
    if request is None or world is None or (request.hosts == "first" and world.members[0].pod_uid != pod_uid):
        return None
    return Inspection(id=request.id, kind=request.kind, steps=request.steps)


def _has_new_answer(state: _JobState, pod_uid: str, instance: str) -> bool:
    if state.broadcast is None:
        return False
    pod = state.pod_states.get(pod_uid)
    return pod is None or pod.last_answer_key != _answer_key(instance, _find_answer(state, state.broadcast, pod_uid))


def needs_reconcile(before: HostReport, after: HostReport) -> bool:
    """Return whether a report needs a reconcile now.

    Progress of steps, batches, commits and file transfers does not. The first step of a world does.
    """
    return before.has_stepped != after.has_stepped or _without_progress(before) != _without_progress(after)


def _without_progress(report: HostReport) -> HostReport:
    cleared_fields = {
        "progress": None,
        "preparation": None,
        "committed": None,
        "moved_mebibytes": None,
        "cpu_seconds": None,
        "entered": 0,
        "port": 1,
    }
    return report.model_copy(update=cleared_fields)


def _progress_key(report: HostReport) -> tuple[object, ...]:
    """Return a value that changes whenever a host makes progress.

    It also changes when the process is stopped or continued. Inside a world, the readiness of the standby process does
    not count as progress.
    """
    step = report.progress.step if report.progress else None
    is_ready = report.standby if report.phase in PHASES_OUTSIDE_WORLD else None
    moved = report.moved_mebibytes if report.phase in FILE_PHASES else None
    batch = report.entered if report.phase is Phase.EVALUATING else None
    return report.instance, report.generation, report.phase, step, batch, moved, is_ready, report.stopped


def _activity_key(report: HostReport) -> int:
    """Return a value that changes when a process uses CPU time, even without visible progress."""
    return (report.cpu_seconds or 0) // ACTIVE_CPU_SECONDS


def _answer_key(instance: str, answer: Answer) -> AnswerKey:
    generation, drill = answer.world.generation if answer.world else 0, answer.drill.id if answer.drill else ""
    return (
        instance,
        answer.directive,
        generation,
        answer.collect_diagnostics,
        drill,
        answer.inspection.id if answer.inspection else "",
        answer.shadow.shadow if answer.shadow else "",
        answer.live_slices,
    )
