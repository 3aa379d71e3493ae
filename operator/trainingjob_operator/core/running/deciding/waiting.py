"""What a job waits for under `elastic.policy: wait` or `auto`: the slices of a world that was lost, for a time.

Whether that is right depends on how long a repair takes here, against the two restarts that going on smaller costs.
With `wait` people say for how long; with `auto` the job's own repairs and restarts do (`patience`). No job waits longer
than `shrinkAfter`. The time counts from the first loss, and begins anew only after a step: slices that come and go
again cannot hold a job for ever.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainingjob_api.base import seconds
from trainingjob_api.status import Attempt, Waiting
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.deciding.decisions import Wait
from trainingjob_operator.core.running.deciding.patience import describe_experience, find_patience, recall
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import describe_time, earlier, format_time, parse_time
from trainingjob_operator.core.units import plural


def begin_waiting(plan: Plan, seen: Observed, end: End, now: datetime) -> Waiting | None:  # None: for nothing
    """Return what is waited for after a world ended."""
    if plan.spec.elastic.policy == "shrink" or end.planned or seen.world is None:
        return None
    if seen.status.waiting and not seen.has_stepped:
        return seen.status.waiting
    return Waiting(slices=len(seen.world.slices), since=format_time(now))


def go_on_waiting(
    plan: Plan, seen: Observed, now: datetime
) -> Waiting | None:  # None: training goes on, or is not wanted
    """Return what is waited for when nothing ended. A clock that was set back cannot make it longer than it is."""
    old = seen.status.waiting
    if old is None or seen.has_stepped or plan.spec.suspend:
        return None
    return old.model_copy(update={"since": earlier(old.since, now) or format_time(now)})


def hold_for_repair(
    plan: Plan, attempts: Sequence[Attempt], waiting: Waiting | None, num_ready: int, now: datetime
) -> Wait | None:
    """Return the wait for more slices than are ready, one at least. None: form a world of what there is."""
    elastic = plan.spec.elastic
    since = parse_time(waiting.since) if waiting else None
    full = plan.find_largest(waiting.slices) if waiting else None
    if elastic.policy == "shrink" or since is None or full is None or num_ready >= full:
        return None
    longest, why = float(seconds(elastic.shrink_after)), ""
    if elastic.policy == "auto":
        known = recall(attempts)
        longest = min(longest, find_patience(known.repairs, known.restart, num_ready / full))
        why = f": {describe_experience(known)}"
    until = since + timedelta(seconds=longest)
    if now >= until:
        return None
    words = f"{num_ready} of {plural(full, 'slice')} ready; waiting for all of them until {describe_time(until)}{why}"
    return Wait(Reason.WAITING_FOR_REPAIR, words)
