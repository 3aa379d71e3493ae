"""The hub: what hosts say, kept in memory, and what they are told, handed out as soon as there is news.

It decides nothing. Reconciling reads what was heard and publishes what holds; between the two stands the status in the
API server, so nothing is ever announced that is not written there. Before anything was published after a start, the
hub has no answer: agents then go on with what they were told last.
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
"""When no host of a job was heard of for this long, it was the operator that could not be reached."""
FORGET_SECONDS = 600.0
"""How long the last words of a pod that is in no world are kept."""
REPORT_AGAIN_SECONDS = 0.05
"""An answer is held back while there is no news, so hosts may ask again at once."""
OUT_OF_WORLDS = (Phase.IDLE, Phase.LEFT, Phase.FAILED)
"""Phases in which a host that gets ready for the next world comes further by that."""
CPU_SECONDS_OF_WORK = 10
"""After how many more CPU seconds a process counts as having worked: one that only waits takes hours for as many."""

type Told = tuple[str, Directive, int, bool, str, str]
"""Of an answer what makes it news: to which agent process, directive, generation, whether to examine, which drill,
which shadow world."""


@dataclass
class _Voice:
    """One pod's newest report, and what it was last told."""

    report: HostReport
    heard: float
    changed: float
    worked: float
    told: Told | None = None


@dataclass
class _Line:
    """All that is known of one job."""

    voices: dict[str, _Voice] = field(default_factory=dict)
    since: float = 0.0
    heard: float = -inf
    bulletin: Bulletin | None = None
    announced: float = 0.0
    burned: int = 0
    away_until: float = -inf
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """Reports in, bulletins out, for all jobs of this operator.

    `clock` is monotonic seconds. `wake` is called with a job's namespace and name when a host says what should be
    looked at now.
    """

    def __init__(self, clock: Callable[[], float], wake: Callable[[str, str], None]) -> None:
        """Start with nothing heard and nothing to say."""
        self._clock = clock
        self._wake = wake
        self._lines: dict[JobKey, _Line] = {}
        self._missed = -inf

    def miss(self) -> None:
        """Count no silence up to now: hosts may have called, and this operator could not hear them."""
        self._missed = self._clock()

    def receive(self, caller: Caller, report: HostReport) -> None:
        """Take a host's report; wake whoever decides if it is more than one more step."""
        now = self._clock()
        line = self._lines.setdefault(caller.job_key, _Line())
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

    async def answer(self, caller: Caller, instance: str, hold: float) -> Answer | None:  # None: nothing is known yet
        """Return what a host is to do: at once when that is news to it, else after `hold` seconds.

        A host that reports again meanwhile does not wait for this answer any more; it is not told by it.
        """
        line = self._lines.setdefault(caller.job_key, _Line())
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
        """Return all that was heard of a job, with ages."""
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
        """Return whether anything was published for a job since this operator leads."""
        line = self._lines.get(job)
        return line is not None and line.bulletin is not None

    def publish(self, job: JobKey, bulletin: Bulletin) -> None:
        """Tell a job's hosts what holds now. What it says must be written in the status already."""
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
        """Never use a generation for a new claim: its claim was sent, and nobody knows whether it arrived."""
        line = self._lines.setdefault(job, _Line())
        line.burned = max(line.burned, generation)

    def leave(self, job: JobKey, seconds: float) -> None:
        """Be away for a job, as if this operator had ended: nobody is heard, and what was known of it is lost."""
        former = self._lines.pop(job, _Line())
        self._lines[job] = _Line(burned=former.burned, away_until=self._clock() + seconds)
        former.bulletin = None
        former.voices.clear()  # who waits for an answer gets none
        former.news.set()

    def seconds_away(self, job: JobKey) -> float:
        """Return for how much longer this operator is away for a job; 0: it is there."""
        line = self._lines.get(job)
        return max(line.away_until - self._clock(), 0.0) if line else 0.0

    def forget(self, job: JobKey) -> None:
        """Drop a job that is gone."""
        self._lines.pop(job, None)

    def clear(self) -> None:
        """Drop everything: another operator leads, and what was published here may no longer hold."""
        self._lines.clear()

    def _forget_pods(self, line: _Line) -> None:
        now, world = self._clock(), line.bulletin.world if line.bulletin else None
        for pod_uid, voice in tuple(line.voices.items()):
            is_member = world is not None and world.find_member(pod_uid) is not None
            if now - voice.heard > FORGET_SECONDS and not is_member:
                del line.voices[pod_uid]


def _leave_out(line: _Line, now: float) -> None:
    """Count silence anew after a time in which no host was heard of, and no standstill for that time.

    What was counted of a standstill before stays: reports that come seldom delay the end of a budget, and no more.
    """
    line.since = now
    for voice in line.voices.values():
        voice.changed += now - line.heard - AWAY_SECONDS
        voice.worked += now - line.heard - AWAY_SECONDS


def _answer(bulletin: Bulletin, pod_uid: str) -> Answer:
    """Return what one host is told: who is not in the world is to wait."""
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
    """Return whether a report should be looked at now: all but how far steps, batches, commits and files are.

    The first step of a world is looked at too.
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
    """Return what changes when a host makes progress, or may again: before its first step it may have been stopped.

    While it is in a world its standby for the next one is no progress.
    """
    step = report.progress.step if report.progress else None
    is_ready = report.standby if report.phase in OUT_OF_WORLDS else None
    moved = report.moved_mebibytes if report.phase in ON_FILES else None
    batch = report.entered if report.phase is Phase.EVALUATING else None
    is_stopped = report.stopped and (report.phase in OUT_OF_WORLDS or not report.has_stepped)
    return report.instance, report.generation, report.phase, step, batch, moved, is_ready, is_stopped


def _work(report: HostReport) -> int:
    """Return what changes when a process works, though nothing shows what it has come to."""
    return (report.cpu_seconds or 0) // CPU_SECONDS_OF_WORK


def _key(instance: str, answer: Answer) -> Told:
    generation, drill = answer.world.generation if answer.world else 0, answer.drill.id if answer.drill else ""
    return instance, answer.directive, generation, answer.examine, drill, answer.shadow.shadow if answer.shadow else ""
