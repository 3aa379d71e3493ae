"""Worn slices: those whose pods run, and in which no restart of a trainer will bring training forward.

A trainer that hangs is replaced in its pod, which keeps the pod, its node and what is in its memory. Where that did not
help, or cannot be done, the whole slice is made anew: what holds a process may be a device, a mount or a process of the
pod that nobody knows of, and the slice's other hosts cannot train without it.
"""

from collections.abc import Mapping

from trainingjob_api.status import Cause
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import parse_time


def find_worn(seen: Observed, end: End | None = None) -> Mapping[int, str]:
    """Return the slices that are to be made anew, and why, in words. `end`: how the world has ended just now."""
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
    """Return the slice and host that the last two ends name, where the slice's Job is still that of before them."""
    ended = [(one.cause, parse_time(one.ended)) for one in seen.status.attempts if one.cause]
    in_a_row = seen.failures_in_a_row
    if end is not None:
        ended.append((end.cause, None))  # now: later than all that is there
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
