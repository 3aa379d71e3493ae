"""Jobs with thousands of hosts: one reconcile takes a tenth of a second of CPU time, which delays answers to hosts.

Such a job is therefore reconciled less often than its hosts report changes, and its unchanged pods are not read again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from trainingjob_operator.core.observe.pods import PodReader
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import JobKey
from trainingjob_operator.shell.job_evaluation import WAITING_REQUEUE_SECONDS

MANY_PODS = 256
"""Number of pods from which a job is large."""
INTERVAL_SECONDS_PER_POD = 0.0001
"""Minimum time between two reconciles, for each pod of the job.

One reconcile takes 0.025 ms of CPU time for each pod if few have changed. All hosts of a world report their first step
within a few seconds.
"""


@dataclass
class _LargeJob:
    """What is kept of a large job from one reconcile to the next."""

    pod_reader: PodReader = field(default_factory=PodReader)
    num_pods: int = 0
    postponable: tuple[JobKey, datetime] | None = None
    """The job, and the time until which only an event or a silent host needs a reconcile."""


class LargeJobs:
    """State of the large jobs, by namespace and name."""

    def __init__(self, hub: Hub, now: Callable[[], datetime]) -> None:
        self._hub = hub
        self._now = now
        self._jobs: dict[tuple[str, str], _LargeJob] = {}

    def begin_reconcile(self, namespace: str, name: str) -> None:
        """Drop the time until which the last reconcile can be postponed."""
        if job := self._jobs.get((namespace, name)):
            job.postponable = None

    def find_reader(self, namespace: str, name: str, num_pods: int) -> PodReader | None:
        """Return the reader of a large job's pods. None: the job is small, and nothing is kept of it."""
        if num_pods < MANY_PODS:
            self.forget(namespace, name)
            return None
        job = self._jobs.setdefault((namespace, name), _LargeJob())
        job.num_pods = num_pods
        return job.pod_reader

    def postpone(self, namespace: str, name: str, key: JobKey, seconds: float) -> None:
        """Let the reconciles of a large job wait for an event or a silent host, for at most these seconds."""
        self._jobs[namespace, name].postponable = key, self._now() + timedelta(seconds=seconds)

    def seconds_to_postpone(self, namespace: str, name: str) -> float:
        """Return the seconds by which the next reconcile can be postponed if no event requests it. 0: not at all."""
        job = self._jobs.get((namespace, name))
        if job is None or job.postponable is None:
            return 0.0
        key, until = job.postponable
        remaining = min((until - self._now()).total_seconds(), WAITING_REQUEUE_SECONDS)
        return max(min(remaining, self._hub.seconds_until_silence(key)), 0.0)

    def min_interval(self, namespace: str, name: str) -> float:
        """Return the minimum number of seconds until the next reconcile, even if events request it. 0: a small job."""
        job = self._jobs.get((namespace, name))
        return job.num_pods * INTERVAL_SECONDS_PER_POD if job else 0.0

    def forget(self, namespace: str, name: str) -> None:
        """Drop what is kept of a job."""
        self._jobs.pop((namespace, name), None)
