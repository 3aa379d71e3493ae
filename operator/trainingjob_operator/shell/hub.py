"""In-memory hub between agents and the reconciler: the newest report of each pod, and each job's published directive.

The hub makes no decisions. The reconciler reads reports, writes the status to the API server, and then publishes the
directive. The hub therefore never publishes a directive that is not in the status.

After a startup the hub has no answer until the first publication. Agents then continue with their last directive.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from trainingjob_api.protocol import ON_FILES, Answer, Directive, HostReport, Phase
from trainingjob_operator.core.running.observing.hearing import Hearing, News
from trainingjob_operator.core.running.telling.announce import Bulletin
from trainingjob_operator.shell.ports import Caller, JobKey

AWAY_SECONDS = 4.0
"""Seconds without a report from any host of a job after which the operator counts as unreachable."""
FORGET_SECONDS = 600.0
"""Retention of the last report of a pod outside the world."""
REPORT_AGAIN_SECONDS = 0.05
"""Delay before an agent's next report. Short, since the operator holds an answer back until it changes."""
OUT_OF_WORLDS = (Phase.IDLE, Phase.LEFT, Phase.FAILED)
"""Phases outside a world, in which the readiness of a host's standby process counts as progress."""
CPU_SECONDS_OF_WORK = 10
"""CPU seconds that count as activity of a process. A process that only waits needs hours to use as many."""

type Told = tuple[str, Directive, int, bool, str, str]
"""Identity of an answer, whose change ends the long poll: agent process, directive, generation, whether to collect
diagnostics, drill ID and standby world."""


@dataclass
class _Voice:
    """Newest report of a pod, the times of its changes, and the identity of its last answer."""

    report: HostReport
    heard: float
    changed: float
    worked: float
    told: Told | None = None


@dataclass
class _Line:
    """State of one job: its pods, its published directive and its simulated outage."""

    voices: dict[str, _Voice] = field(default_factory=dict)
    since: float = 0.0
    heard: float = -inf
    bulletin: Bulletin | None = None
    announced: float = 0.0
    burned: int = 0
    away_until: float = -inf
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """Reports and published directives of all jobs of this operator.

    `clock` returns monotonic seconds. `wake` is called with a job's namespace and name if a report needs a reconcile.
    """

    def __init__(self, clock: Callable[[], float], wake: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._lines: dict[JobKey, _Line] = {}
        self._missed = -inf

    def miss(self) -> None:
        """Restart the heartbeat timeouts of all jobs: the operator may have missed reports until now."""
        self._missed = self._clock()

    def receive(self, caller: Caller, report: HostReport) -> None:
        """Store a host's report, and wake the reconciler if more than the progress changed."""
        now = self._clock()
        line = self._line_of(caller.job_key)
        if now - line.heard > AWAY_SECONDS:
            _leave_out(line, now)
        line.heard = now
        voice = line.voices.get(report.pod_uid)
        if voice is None:
            line.voices[report.pod_uid] = _Voice(report, now, now, now)
        else:
            changed = now if _state(voice.report) != _state(report) else voice.changed
            worked = now if changed == now or _work(voice.report) != _work(report) else voice.worked
            line.voices[report.pod_uid] = _Voice(report, now, changed, worked, voice.told)
        if voice is None or is_news(voice.report, report):
            self._wake(caller.namespace, caller.job)

    async def answer(self, caller: Caller, instance: str, hold: float) -> Answer | None:  # None: not published yet
        """Return the answer to a host as soon as it differs from the host's last answer, or after `hold` seconds.

        A newer report of the same host ends the wait. The superseded answer does not count as delivered.
        """
        line = self._line_of(caller.job_key)
        voice = line.voices.get(caller.pod_uid)
        try:
            async with asyncio.timeout(hold):
                while line.voices.get(caller.pod_uid) is voice and not _has_news(line, caller.pod_uid, instance):
                    await line.news.wait()
        except TimeoutError:
            pass
        if line.bulletin is None:
            return None
        answer = _answer(line.bulletin, caller.pod_uid)
        if voice is not None:
            voice.told = _key(instance, answer)
        return answer

    def hearing(self, job: JobKey) -> Hearing:
        """Return the reports of a job, with their ages."""
        line = self._lines.get(job)
        if line is None:
            return Hearing()
        now = self._clock()
        news = {
            pod_uid: News(voice.report, now - voice.heard, now - voice.changed, now - voice.worked)
            for pod_uid, voice in line.voices.items()
        }
        return Hearing(
            news=news,
            listening=now - max(line.since, self._missed) if line.voices else 0.0,
            announced=now - line.announced if line.bulletin and line.bulletin.world else 0.0,
            burned=line.burned,
        )

    def has_spoken(self, job: JobKey) -> bool:
        """Return whether this operator has published a directive for the job since it became the leader."""
        line = self._lines.get(job)
        return line is not None and line.bulletin is not None

    def publish(self, job: JobKey, bulletin: Bulletin) -> None:
        """Publish a directive to a job's hosts. The status must already hold it."""
        line = self._lines.setdefault(job, _Line())
        if line.bulletin == bulletin:
            return
        before = line.bulletin.world if line.bulletin else None
        if bulletin.world and (before is None or before.generation != bulletin.world.generation):
            line.announced = self._clock()
        line.bulletin = bulletin
        self._forget_pods(line)
        line.news.set()
        line.news = asyncio.Event()

    def burn(self, job: JobKey, generation: int) -> None:
        """Exclude a generation from new claims: the write of its claim failed with an unknown result."""
        line = self._lines.setdefault(job, _Line())
        line.burned = max(line.burned, generation)

    def leave(self, job: JobKey, seconds: float) -> None:
        """Simulate an operator outage for this job: drop its state, and answer no reports for `seconds`."""
        former = self._lines.pop(job, _Line())
        self._lines[job] = _Line(burned=former.burned, away_until=self._clock() + seconds)
        former.bulletin = None
        former.voices.clear()  # ends the pending long polls without an answer
        former.news.set()

    def seconds_away(self, job: JobKey) -> float:
        """Return the remaining seconds of the simulated outage of a job; 0: none."""
        line = self._lines.get(job)
        return max(line.away_until - self._clock(), 0.0) if line else 0.0

    def forget(self, job: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._lines.pop(job, None)

    def clear(self) -> None:
        """Drop all state: another operator may have led, so the published directives may be outdated."""
        self._lines.clear()

    def _line_of(self, job: JobKey) -> _Line:
        """Return the entry of a job. A new one drops the entries that reports of deleted jobs left behind."""
        if job not in self._lines:
            now = self._clock()
            for key, line in tuple(self._lines.items()):
                is_needed = line.bulletin or line.burned or line.away_until > now
                if not is_needed and now - max(line.heard, line.since) > FORGET_SECONDS:
                    del self._lines[key]
        return self._lines.setdefault(job, _Line())

    def _forget_pods(self, line: _Line) -> None:
        now, world = self._clock(), line.bulletin.world if line.bulletin else None
        for pod_uid, voice in tuple(line.voices.items()):
            is_member = world is not None and world.find_member(pod_uid) is not None
            if now - voice.heard > FORGET_SECONDS and not is_member:
                del line.voices[pod_uid]


def _leave_out(line: _Line, now: float) -> None:
    """Exclude an operator outage from a job's timeouts.

    The heartbeat timeout restarts. The stall timeout excludes the outage but keeps the time before it, so that rare
    reports delay a stall timeout but cannot prevent it.
    """
    line.since = now
    for voice in line.voices.values():
        voice.changed += now - line.heard - AWAY_SECONDS
        voice.worked += now - line.heard - AWAY_SECONDS


def _answer(bulletin: Bulletin, pod_uid: str) -> Answer:
    """Return the answer to one host. A host outside the world waits."""
    again = REPORT_AGAIN_SECONDS
    if bulletin.directive is Directive.FINISH:
        return Answer(directive=bulletin.directive, outcome=bulletin.outcome, report_again_seconds=again)
    if bulletin.world is None or bulletin.world.find_member(pod_uid) is None:
        return Answer(directive=Directive.WAIT, report_again_seconds=again)
    return Answer(
        directive=bulletin.directive,
        world=bulletin.world,
        examine=bulletin.examine,
        drill=bulletin.order.drill if bulletin.order and pod_uid in bulletin.order.pods else None,
        moves=bulletin.moves,
        shadow=next((one for one in bulletin.shadows if one.find_member(pod_uid)), None),
        report_again_seconds=again,
    )


def _has_news(line: _Line, pod_uid: str, instance: str) -> bool:
    if line.bulletin is None:
        return False
    voice = line.voices.get(pod_uid)
    return voice is None or voice.told != _key(instance, _answer(line.bulletin, pod_uid))


def is_news(before: HostReport, after: HostReport) -> bool:
    """Return whether a report needs a reconcile now.

    Progress of steps, batches, commits and file transfers does not. The first step of a world does.
    """
    return before.has_stepped != after.has_stepped or _settled(before) != _settled(after)


def _settled(report: HostReport) -> HostReport:
    unsettled = {
        "progress": None,
        "committed": None,
        "moved_mebibytes": None,
        "cpu_seconds": None,
        "entered": 0,
        "port": 1,
    }
    return report.model_copy(update=unsettled)


def _state(report: HostReport) -> tuple[object, ...]:
    """Return a value that changes whenever a host makes progress.

    It also changes when the process is stopped or continued, outside a world or before its first step there. Inside a
    world, the readiness of the standby process does not count as progress.
    """
    step = report.progress.step if report.progress else None
    is_ready = report.standby if report.phase in OUT_OF_WORLDS else None
    moved = report.moved_mebibytes if report.phase in ON_FILES else None
    batch = report.entered if report.phase is Phase.EVALUATING else None
    is_stopped = report.stopped and (report.phase in OUT_OF_WORLDS or not report.has_stepped)
    return report.instance, report.generation, report.phase, step, batch, moved, is_ready, is_stopped


def _work(report: HostReport) -> int:
    """Return a value that changes when a process uses CPU time, even without visible progress."""
    return (report.cpu_seconds or 0) // CPU_SECONDS_OF_WORK


def _key(instance: str, answer: Answer) -> Told:
    generation, drill = answer.world.generation if answer.world else 0, answer.drill.id if answer.drill else ""
    return instance, answer.directive, generation, answer.examine, drill, answer.shadow.shadow if answer.shadow else ""
