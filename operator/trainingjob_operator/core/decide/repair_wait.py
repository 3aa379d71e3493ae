"""Repair waits under `elastic.policy: wait` or `auto`: a limited wait for the slices of a lost world.

Whether to wait depends on the usual repair time and the two restarts that a smaller world costs. With `wait` the user
sets the time, with `auto` the job's own repairs and restarts do (`repair_wait_limit`). `shrinkAfter` is the upper limit
of both. The time counts from the first loss and restarts only after a completed step, so flapping slices cannot block a
job.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainingjob_api.base import seconds
from trainingjob_api.status.world_status import Attempt, Waiting
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.decide.repair_wait_limit import (
    describe_repair_history,
    max_repair_wait,
    read_repair_history,
)
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import clamp_to_now, format_display_time, format_time, parse_time
from trainingjob_operator.core.units import pluralize


def start_repair_wait(plan: Plan, seen: Observed, end: WorldEnd, now: datetime) -> Waiting | None:  # None: no wait
    """Return the repair wait after a world ended."""
    if plan.spec.elastic.policy == "shrink" or end.is_planned or seen.world is None:
        return None
    if seen.status.waiting and not seen.has_stepped:
        return seen.status.waiting
    return Waiting(slices=len(seen.world.slices), since=format_time(now))


def continue_repair_wait(plan: Plan, seen: Observed, now: datetime) -> Waiting | None:  # None: training, or suspended
    """Return the repair wait if no world ended. A clock that was set back must not lengthen it."""
    old = seen.status.waiting
    if old is None or seen.has_stepped or plan.spec.suspend:
        return None
    return old.model_copy(update={"since": clamp_to_now(old.since, now) or format_time(now)})


def wait_for_repair(
    plan: Plan, attempts: Sequence[Attempt], waiting: Waiting | None, num_ready: int, now: datetime
) -> Wait | None:
    """Return the wait for further slices, given at least one ready slice. None: form a world of the ready slices."""
    elastic = plan.spec.elastic
    since = parse_time(waiting.since) if waiting else None
    full_size = plan.find_largest_size(waiting.slices) if waiting else None
    if elastic.policy == "shrink" or since is None or full_size is None or num_ready >= full_size:
        return None
    longest, cause = float(seconds(elastic.shrink_after)), ""
    if elastic.policy == "auto":
        history = read_repair_history(attempts)
        longest = min(longest, max_repair_wait(history.repair_seconds, history.restart_seconds, num_ready / full_size))
        cause = f": {describe_repair_history(history)}"
    until = since + timedelta(seconds=longest)
    if now >= until:
        return None
    message = (
        f"{num_ready} of {pluralize(full_size, 'slice')} ready; waiting for the others until "
        f"{format_display_time(until)}{cause}"
    )
    return Wait(Reason.WAITING_FOR_REPAIR, message)
