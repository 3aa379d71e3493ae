"""Slices to recreate: slices whose pods run, but in which restarting a trainer process does not help.

The operator first restarts a hung trainer inside its pod, which keeps the pod, its node and its memory. If that fails
or is impossible, it recreates the whole slice. A device, a mount or an unknown process of the pod may block the
trainer, and the slice's other hosts cannot train without it.
"""

from collections.abc import Mapping

from trainingjob_api.status import Cause
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import parse_time


def find_worn(seen: Observed, end: End | None = None) -> Mapping[int, str]:
    """Return the slices to recreate and the reason for each. `end`: how the world has just ended."""
    worn = {}
    if again := _find_hung_again(seen, end):
        slice_number, host = again
        worn[slice_number] = f"host {host} of it hangs again, though its trainer was started anew"
    for one in seen.slices:
        stuck = next((host.host for host in one.hosts if host.news and host.news.report.unreaped), None)
        if stuck is not None:
            worn[one.number] = (
                f"a trainer of host {stuck} that was killed does not end, so that no other can start there"
            )
    return worn


def _find_hung_again(seen: Observed, end: End | None) -> tuple[int, int] | None:  # None: no host does
    """Return the slice and host that the last two ends name, if the slice's Job is older than the second end."""
    ended = [(one.cause, parse_time(one.ended)) for one in seen.status.attempts if one.cause]
    in_a_row = seen.failures_in_a_row
    if end is not None:
        ended.append((end.cause, None))  # it ends now, after every Job's creation
        in_a_row += end.counted
    if in_a_row < 2 or len(ended) < 2:
        return None
    (before, _), (last, time) = ended[-2:]
    if last.slice is None or last.host is None or _name(last) != _name(before) or last.reason != Reason.HUNG_HOST:
        return None
    made = [parse_time(job.created) for job in seen.jobs if job.slice == last.slice]
    is_of_before = any(created and (time is None or created < time) for created in made)
    return (last.slice, last.host) if is_of_before else None


def _name(cause: Cause) -> tuple[object, ...]:
    return cause.reason, cause.phase, cause.slice, cause.host, cause.node
