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
REPORTS_PER_SECOND = 1500.0
"""Target of the number of reports per second. One of them takes about 0.3 ms of CPU time."""
MAX_HOLD_SECONDS = 2.0
"""Longest hold time of an answer with many hosts: half of `OUTAGE_SECONDS`."""
COUNT_SECONDS = 1.0
"""Interval at which the hosts of all jobs are counted."""
REPORT_DELAY_SECONDS = 0.05
"""Delay before an agent's next report. Short, since the operator holds an answer back until it changes."""
PHASES_OUTSIDE_WORLD = (Phase.IDLE, Phase.LEFT, Phase.FAILED)
"""Phases outside a world, in which the readiness of a host's standby process counts as progress."""
ACTIVE_CPU_SECONDS = 10
"""CPU seconds that count as activity of a process. A process that only waits needs hours to use as many."""

type AnswerKey = tuple[str, Directive, int, bool, str, str, str, tuple[int, ...] | None]
"""Identity of an answer, whose change ends the long poll: agent process, directive, generation, whether to collect
diagnostics, drill ID, inspection ID, standby world and live slices."""


@dataclass(slots=True)
class _PodState:
    """Newest report of a pod, the times of its changes, and the identity of its last answer."""

    report: HostReport
    reported_at: float
    progressed_at: float
    active_at: float
    delivered: AnswerKey | None = None


@dataclass(slots=True)
class _JobState:
    """State of one job: its pods, its published directive and its simulated outage."""

    pod_states: dict[str, _PodState] = field(default_factory=dict)
    listening_since: float = 0.0
    heard: float = -inf
    broadcast: JobDirective | None = None
    published_at: float = 0.0
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
        line = self._line_of(caller.job_key)
        if now - line.heard > OUTAGE_SECONDS:
            _exclude_outage(line, now)
        line.heard = now
        voice = line.pod_states.get(report.pod_uid)
        if voice is None:
            line.pod_states[report.pod_uid] = _PodState(report, now, now, now)
        elif voice.report is report:
            line.pod_states[report.pod_uid] = replace(voice, reported_at=now)
            return
        else:
            changed = now if _progress_key(voice.report) != _progress_key(report) else voice.progressed_at
            worked = now if changed == now or _activity_key(voice.report) != _activity_key(report) else voice.active_at
            line.pod_states[report.pod_uid] = _PodState(report, now, changed, worked, voice.delivered)
        if voice is None or needs_reconcile(voice.report, report):
            self._wake(caller.namespace, caller.job)

    async def answer(
        self, caller: Caller, instance: str, hold_seconds: float
    ) -> Answer | None:  # None: not published yet
        """Return the answer to a host as soon as it differs from the host's last answer, or after `hold` seconds.

        A newer report of the same host ends the wait. The superseded answer does not count as delivered. With thousands
        of hosts, the answers of a world wait longer, though no longer than half of its heartbeat timeout, and each host
        is answered at another time.
        """
        line = self._line_of(caller.job_key)
        voice = line.pod_states.get(caller.pod_uid)
        try:
            async with asyncio.timeout(self._stretch_hold(line, caller.pod_uid, hold_seconds)):
                while line.pod_states.get(caller.pod_uid) is voice and not _has_new_answer(
                    line, caller.pod_uid, instance
                ):
                    line.answer_changed = line.answer_changed or asyncio.Event()
                    await line.answer_changed.wait()
        except TimeoutError:
            pass
        if line.broadcast is None:
            return None
        answer = _find_answer(line, line.broadcast, caller.pod_uid)
        if voice is not None:
            voice.delivered = _answer_key(instance, answer)
        return answer

    def heartbeat_state(self, job: JobKey) -> HeartbeatState:
        """Return the reports of a job, with their ages."""
        line = self._jobs.get(job)
        if line is None:
            return HeartbeatState()
        now = self._clock()
        latest_reports = {
            pod_uid: LatestReport(
                voice.report, now - voice.reported_at, now - voice.progressed_at, now - voice.active_at
            )
            for pod_uid, voice in line.pod_states.items()
        }
        return HeartbeatState(
            latest_reports=latest_reports,
            listening_seconds=now - max(line.listening_since, self._silence_reset_at) if line.pod_states else 0.0,
            seconds_since_publish=now - line.published_at if line.broadcast and line.broadcast.world else 0.0,
            max_unconfirmed_generation=line.max_unconfirmed_generation,
        )

    def seconds_until_silence(self, job: JobKey) -> float:
        """Return the seconds until a host of the world exceeds the heartbeat timeout. 0: one has, or no world runs."""
        line = self._jobs.get(job)
        if line is None or line.broadcast is None or line.broadcast.world is None:
            return 0.0
        reported = (line.pod_states[uid].reported_at for uid in line.directives if uid in line.pod_states)
        now = self._clock()
        return max(min(reported, default=now) + line.broadcast.heartbeat_timeout_seconds - now, 0.0)

    def has_published(self, job: JobKey) -> bool:
        """Return whether this operator has published a directive for the job since it became the leader."""
        line = self._jobs.get(job)
        return line is not None and line.broadcast is not None

    def publish(self, job: JobKey, job_directive: JobDirective) -> None:
        """Publish a directive to a job's hosts. The status must already hold it."""
        line = self._jobs.setdefault(job, _JobState())
        if line.broadcast == job_directive:
            return
        before = line.broadcast.world if line.broadcast else None
        if job_directive.world and (before is None or before.generation != job_directive.world.generation):
            line.published_at = self._clock()
        line.broadcast = job_directive
        standby_worlds = reversed(job_directive.standby_worlds)
        line.directives = job_directive.find_for_pods()
        line.standby_worlds = {member.pod_uid: standby for standby in standby_worlds for member in standby.members}
        line.answers = {}
        self._drop_stale_pods(line)
        _release_answers(line)

    def retire_generation(self, job: JobKey, generation: int) -> None:
        """Exclude a generation from new claims: the write of its claim failed with an unknown result."""
        line = self._jobs.setdefault(job, _JobState())
        line.max_unconfirmed_generation = max(line.max_unconfirmed_generation, generation)

    def pause_job(self, job: JobKey, seconds: float) -> None:
        """Simulate an operator outage for this job: drop its state, and answer no reports for `seconds`."""
        former = self._jobs.pop(job, _JobState())
        self._jobs[job] = _JobState(
            max_unconfirmed_generation=former.max_unconfirmed_generation, paused_until=self._clock() + seconds
        )
        former.broadcast = None
        former.pod_states.clear()  # ends the pending long polls without an answer
        _release_answers(former)

    def paused_seconds(self, job: JobKey) -> float:
        """Return the remaining seconds of the simulated outage of a job; 0: none."""
        job_state = self._jobs.get(job)
        return max(job_state.paused_until - self._clock(), 0.0) if job_state else 0.0

    def drop_job(self, job: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._jobs.pop(job, None)

    def clear(self) -> None:
        """Drop all state: another operator may have led, so the published directives may be outdated."""
        self._jobs.clear()

    def _stretch_hold(self, line: _JobState, pod_uid: str, hold_seconds: float) -> float:
        """Return the hold time of an answer at the current number of hosts.

        A publication answers all hosts at once. With equal hold times, they would report at the same time from then on.
        The UID therefore sets the time of an answer within each interval of the longer hold time.
        """
        now = self._clock()
        if now - self._hosts_counted_at >= COUNT_SECONDS:
            self._num_hosts = sum(len(job.pod_states) for job in self._jobs.values())
            self._hosts_counted_at = now
        if line.broadcast is None or self._num_hosts <= REPORTS_PER_SECOND:
            return hold_seconds
        longest = min(line.broadcast.heartbeat_timeout_seconds / 2, MAX_HOLD_SECONDS)
        interval = max(hold_seconds, min(self._num_hosts / REPORTS_PER_SECOND, longest))
        return interval - (now - share_of_interval(pod_uid) * interval) % interval

    def _line_of(self, job: JobKey) -> _JobState:
        """Return the entry of a job. A new one drops the entries that reports of deleted jobs left behind."""
        if job not in self._jobs:
            now = self._clock()
            for key, line in tuple(self._jobs.items()):
                is_needed = line.broadcast or line.max_unconfirmed_generation or line.paused_until > now
                if not is_needed and now - max(line.heard, line.listening_since) > RETENTION_SECONDS:
                    del self._jobs[key]
        return self._jobs.setdefault(job, _JobState())

    def _drop_stale_pods(self, line: _JobState) -> None:
        now = self._clock()
        for pod_uid, pod_state in tuple(line.pod_states.items()):
            if now - pod_state.reported_at > RETENTION_SECONDS and pod_uid not in line.directives:
                del line.pod_states[pod_uid]


def share_of_interval(name: str) -> float:
    """Return the share of an interval at which this name is due: from 0 to 1, the same in each process.

    Hosts or jobs with one interval would otherwise come as one wave in each.
    """
    return zlib.crc32(name.encode()) / 2**32


def _release_answers(line: _JobState) -> None:
    """End the wait of all hosts of a job for a change of their answers."""
    if line.answer_changed:
        line.answer_changed.set()
        line.answer_changed = None


def _exclude_outage(line: _JobState, now: float) -> None:
    """Exclude an operator outage from a job's timeouts.

    The heartbeat timeout restarts. The stall timeout excludes the outage but keeps the time before it, so that rare
    reports delay a stall timeout but cannot prevent it.
    """
    line.listening_since = now
    for voice in line.pod_states.values():
        voice.progressed_at += now - line.heard - OUTAGE_SECONDS
        voice.active_at += now - line.heard - OUTAGE_SECONDS


def _find_answer(line: _JobState, published: JobDirective, pod_uid: str) -> Answer:
    """Return the answer to one host. Hosts with the same part in the directive get the same object."""
    directive = line.directives.get(pod_uid)
    is_member, published = directive is not None, directive or published
    order = published.injection_order
    drill = order.drill if order and pod_uid in order.pods else None
    inspection = _find_inspection(published.inspection, published.world, pod_uid) if is_member else None
    standby = line.standby_worlds.get(pod_uid)
    generation = published.world.generation if published.world else 0
    part = (is_member, generation, drill and drill.id, inspection and inspection.id, standby and standby.shadow)
    if part not in line.answers:
        line.answers[part] = _build_answer(published, drill, inspection, standby, is_member=is_member)
    return line.answers[part]


def _build_answer(
    published: JobDirective,
    drill: Drill | None,
    inspection: Inspection | None,
    standby: World | None,
    *,
    is_member: bool,
) -> Answer:
    """Return the answer to hosts with this part in a directive. A host outside the world waits."""
    again = REPORT_DELAY_SECONDS
    if published.directive is Directive.FINISH:
        return Answer(directive=published.directive, outcome=published.outcome, report_again_seconds=again)
    if published.world is None or not is_member:
        return Answer(directive=Directive.WAIT, report_again_seconds=again)
    return Answer(
        directive=published.directive,
        world=published.world,
        collect_diagnostics=published.collects_diagnostics,
        drill=drill,
        inspection=inspection,
        moves=published.moves,
        shadow=standby,
        live_slices=published.live_slices,
        report_again_seconds=again,
    )


def _find_inspection(request: InspectionRequest | None, world: World | None, pod_uid: str) -> Inspection | None:
    """Return the inspection of a host; None: it is not inspected."""
    if request is None or world is None or (request.hosts == "first" and world.members[0].pod_uid != pod_uid):
        return None
    return Inspection(id=request.id, kind=request.kind, steps=request.steps)


def _has_new_answer(line: _JobState, pod_uid: str, instance: str) -> bool:
    if line.broadcast is None:
        return False
    voice = line.pod_states.get(pod_uid)
    return voice is None or voice.delivered != _answer_key(instance, _find_answer(line, line.broadcast, pod_uid))


def needs_reconcile(before: HostReport, after: HostReport) -> bool:
    """Return whether a report needs a reconcile now.

    Progress of steps, batches, commits and file transfers does not. The first step of a world does.
    """
    return before.has_stepped != after.has_stepped or _without_progress(before) != _without_progress(after)


def _without_progress(report: HostReport) -> HostReport:
    unsettled = {
        "progress": None,
        "preparation": None,
        "committed": None,
        "moved_mebibytes": None,
        "cpu_seconds": None,
        "entered": 0,
        "port": 1,
    }
    return report.model_copy(update=unsettled)


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
