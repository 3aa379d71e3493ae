"""Counts of restarts and lost steps, from the attempts in the statuses of jobs.

A leader counts what happens during its leadership. Everything that a status holds at the begin of a leadership was
counted by the leader before, in the series of another pod.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from trainingjob_operator.core.manifests import Manifest, get_int, get_text, iter_items
from trainingjob_operator.core.times import parse_time

UNLISTED = "Unlisted"
"""Reason of restarts whose attempts a status no longer holds: it keeps the newest ones."""


class AttemptCounts:
    """Counts of one job: restarts by reason, and lost steps."""

    def __init__(self) -> None:
        self.restarts: dict[str, int] = {}
        self.lost_steps = 0
        self._total = 0
        self._restarted: set[int] = set()
        self._repeated: set[int] = set()

    def update(self, job: Manifest) -> None:
        """Count restarts and lost steps that are new in the status of a job.

        The sum of all restarts follows `status.restarts.total`, which excludes planned ends and the end of the job.
        """
        restarted = {number: attempt for number, attempt in _by_generation(job) if attempt.get("restarted") is True}
        new = restarted.keys() - self._restarted
        for number in new:
            self._count(get_text(restarted[number], "cause", "reason") or UNLISTED, 1)
        total = get_int(job, "status", "restarts", "total") or 0
        self._count(UNLISTED, total - self._total - len(new))
        repeated = {
            number: lost
            for number, attempt in _by_generation(job)
            if (lost := get_int(attempt, "lostSteps")) is not None
        }
        self.lost_steps += sum(repeated[number] for number in repeated.keys() - self._repeated)
        self._total, self._restarted, self._repeated = total, set(restarted), set(repeated)

    def _count(self, reason: str, count: int) -> None:
        if count > 0:
            self.restarts[reason] = self.restarts.get(reason, 0) + count


def skip_known(job: Manifest) -> AttemptCounts:
    """Return the counts of a job without everything that its status holds."""
    counts = AttemptCounts()
    counts.update(job)
    counts.restarts, counts.lost_steps = {}, 0
    return counts


class JobCounts:
    """Counts of all jobs since the begin of this operator's leadership."""

    def __init__(self, jobs: Iterable[Manifest], now: Callable[[], datetime]) -> None:
        self._jobs = jobs
        self._now = now
        self.begin()

    def begin(self) -> None:
        """Begin again at zero: another leader has counted what the statuses hold."""
        self._since = self._now()
        self._counts = {get_text(job, "metadata", "uid"): skip_known(job) for job in self._jobs}

    def update(self, jobs: Iterable[Manifest]) -> Iterator[tuple[Manifest, AttemptCounts]]:
        """Yield each job with its counts, after counting what is new in its status. Drop those of other jobs."""
        counted = {}
        for job in jobs:
            uid = get_text(job, "metadata", "uid")
            counts = counted[uid] = self._counts.get(uid) or self._start(job)
            counts.update(job)
            yield job, counts
        self._counts = counted

    def _start(self, job: Manifest) -> AttemptCounts:
        """Return the counts of a job that is seen for the first time."""
        created = parse_time(get_text(job, "metadata", "creationTimestamp"))
        return AttemptCounts() if created is not None and created >= self._since else skip_known(job)


def _by_generation(job: Manifest) -> Iterator[tuple[int, Manifest]]:
    for attempt in iter_items(job, "status", "attempts"):
        yield get_int(attempt, "generation") or 0, attempt
