"""Slices to recreate: slices whose pods run, but in which restarting a trainer process does not help.

The operator first restarts a hung trainer inside its pod, which keeps the pod, its node and its memory. If that fails
or is impossible, it recreates the whole slice. A device, a mount or an unknown process of the pod may block the
trainer, and the slice's other hosts cannot train without it.
"""

from collections.abc import Mapping

from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import parse_time


def find_slices_to_recreate(seen: Observed, end: WorldEnd | None = None) -> Mapping[int, str]:
    """Return the slices to recreate and the reason for each. `end`: how the world has just ended."""
    if seen.replicas:
        return {number: reason for view in seen.replicas for number, reason in find_slices_to_recreate(view).items()}
    to_recreate = {}
    if repeated_hang := _find_repeated_hang(seen, end):
        slice_number, host = repeated_hang
        to_recreate[slice_number] = f"host {host} hangs again after a restart of its training process"
    for slice_ in seen.slices:
        stuck_host = next(
            (host.host for host in slice_.hosts if host.latest_report and host.latest_report.report.unreaped), None
        )
        if stuck_host is not None:
            to_recreate[slice_.number] = (
                f"the killed training process of host {stuck_host} does not exit, so no new one can start"
            )
    return to_recreate


def _find_repeated_hang(seen: Observed, end: WorldEnd | None) -> tuple[int, int] | None:  # None: no host does
    """Return the slice and host that the last two ends name, if the slice's Job is older than the second end."""
    ended = [(attempt.cause, parse_time(attempt.ended)) for attempt in seen.status.attempts if attempt.cause]
    num_consecutive = seen.consecutive_failures
    if end is not None:
        ended.append((end.cause, None))  # it ends now, after every Job's creation
        num_consecutive += end.is_counted
    if num_consecutive < 2 or len(ended) < 2:
        return None
    (before, _), (last, time) = ended[-2:]
    if (
        last.slice is None
        or last.host is None
        or _identify(last) != _identify(before)
        or last.reason != Reason.HUNG_HOST
    ):
        return None
    created_times = [parse_time(job.created) for job in seen.jobs if job.slice == last.slice]
    is_older_than_end = any(created and (time is None or created < time) for created in created_times)
    return (last.slice, last.host) if is_older_than_end else None


def _identify(cause: Cause) -> tuple[object, ...]:
    return cause.reason, cause.phase, cause.slice, cause.host, cause.node
