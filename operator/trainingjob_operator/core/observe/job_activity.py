"""How long Kubernetes' Job controller has been silent about a child Job.

The controller can stop handling a Job that was recreated under the name of a deleted one, as JobSet does after each
loss: it waits for pods of the deleted Job (https://github.com/kubernetes/kubernetes/issues/142142). It then neither
replaces a lost pod nor reports a problem, until something else changes the Job.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.manifests import Children, Manifest, get_text
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.times import parse_time

EVENT_INTERVAL = timedelta(minutes=5)
"""Longest time between two events about the same problem: client-go drops the others once it has emitted 25."""
DENIED_UNTIL_LEADER_IS_PLACED = "follower pod node selector not set"
"""Part of the message with which JobSet denies the other hosts of a slice until the pod of host 0 is scheduled."""


def count_silent_seconds(
    job: Manifest, pods: Sequence[Pod], children: Children, status: TrainingJobStatus, now: datetime
) -> float:
    """Return the seconds since the controller last acted on a Job, as far as its own pods and other objects show it.

    At least 0. The start of the newest world counts too: a host that a world has lost was there until then.
    """
    ages = [(now - time).total_seconds() for time in _list_activity(job, children, status) if time is not None]
    return max(min((*ages, *(pod.settled_seconds(now) for pod in pods)), default=0.0), 0.0)


def _list_activity(job: Manifest, children: Children, status: TrainingJobStatus) -> Iterator[datetime | None]:
    yield parse_time(get_text(job, "metadata", "creationTimestamp"))
    for attempt in status.attempts[-1:]:
        yield parse_time(attempt.started)
        yield parse_time(attempt.ended)
    for event in children.warnings:
        about_job = get_text(event, "involvedObject", "name") == get_text(job, "metadata", "name")
        if about_job and DENIED_UNTIL_LEADER_IS_PLACED not in get_text(event, "message"):
            refused = parse_time(get_text(event, "lastTimestamp") or get_text(event, "eventTime"))
            yield refused and refused + EVENT_INTERVAL
