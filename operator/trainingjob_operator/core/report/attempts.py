"""Attempts: the history of each world, from its formation to its end."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainingjob_api.status.progress_status import Goodput
from trainingjob_api.status.world_status import Attempt, WorldStatus
from trainingjob_api.world import Tier, World
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.members import (
    MemberView,
    find_missing_lineage,
    find_newest_step,
    find_restored_step,
    find_restored_tier,
    hash_members,
)
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time, parse_time, seconds_between

type Attempts = tuple[Attempt, ...]

MAX_ATTEMPTS = 20


def update_attempts(
    attempts: Attempts, world: World | None, member_views: Sequence[MemberView], now: datetime
) -> Attempts:
    """Return the attempts after the hosts' reports: first step, newest step and recovery cost of the current one."""
    if world is None or not attempts or attempts[-1].generation != world.generation:
        return attempts
    restored, step = find_restored_step(member_views), find_newest_step(member_views)
    if restored is not None:
        for span in find_missing_lineage(member_views):  # worlds that were lost before the operator received a report
            attempts = _record_restore(attempts, span.generation, span.first - 1, span.tier if span.first > 1 else None)
        attempts = _record_restore(attempts, world.generation, restored, find_restored_tier(member_views))
    current = attempts[-1]
    previous = attempts[-2] if len(attempts) > 1 else None
    changes: dict[str, object] = {}
    if step is not None:
        changes["last_step"] = max(step, current.last_step or 0)
    has_stepped = restored is not None and step is not None and step > restored
    was_paused = previous is not None and previous.cause is not None and previous.cause.reason == Reason.SUSPENDED
    if has_stepped and previous and previous.ended and not was_paused and current.recovery_seconds is None:
        changes["recovery_seconds"] = round(seconds_between(previous.ended, now), 1)
    return (*attempts[:-1], current.model_copy(update=changes))


def _record_restore(attempts: Attempts, generation: int, restored: int, tier: Tier | None) -> Attempts:
    """Return the attempts after a world resumed from a step in a tier; unchanged if that is already recorded."""
    number = next((number for number, attempt in enumerate(attempts) if attempt.generation == generation), None)
    if number is None or attempts[number].first_step is not None:
        return attempts
    changes: dict[str, object] = {"first_step": restored, "tier": tier, "last_step": restored}
    before = list(attempts[:number])
    for index in reversed(range(number)):  # skip worlds that ended before they restored a step
        if (last_step := before[index].last_step) is not None:
            changes["lost_steps"] = max(last_step - restored, 0)
            # The restored step may be newer than the last reported one.
            before[index] = before[index].model_copy(update={"last_step": max(last_step, restored)})
            break
    return (*before, attempts[number].model_copy(update=changes), *attempts[number + 1 :])


def add_seconds(attempts: Attempts, before: Goodput, after: Goodput) -> Attempts:
    """Return the attempts with the seconds that each bucket gained, added to the current world.

    No world of a replica has seconds: the goodput is that of the job, in which several train at once.
    """
    if not attempts or attempts[-1].ended or attempts[-1].slice is not None:
        return attempts
    seconds_by_bucket = dict(attempts[-1].seconds)
    for bucket, seconds in after.seconds.items():
        gained = seconds - before.seconds.get(bucket, 0.0)
        if gained:
            seconds_by_bucket[bucket] = max(round(seconds_by_bucket.get(bucket, 0.0) + gained, 3), 0.0)
    return (*attempts[:-1], attempts[-1].model_copy(update={"seconds": seconds_by_bucket}))


def end_attempt(attempts: Attempts, end: WorldEnd, now: datetime, *, restarted: bool) -> Attempts:
    """Return the attempts after the last one ended, dated to the failure rather than to its detection.

    `restarted`: `restarts.total` counts the end.
    """
    if not attempts or attempts[-1].ended:
        return attempts
    current = attempts[-1]
    ended = now - timedelta(seconds=end.seconds_ago)
    started = parse_time(current.started)
    ended = max(ended, started) if started and started <= now else ended
    closed = current.model_copy(update={"ended": format_time(ended), "cause": end.cause, "restarted": restarted})
    return (*attempts[:-1], closed)


def add_attempt(attempts: Attempts, world: World, now: datetime) -> Attempts:
    """Return the attempts with a new one for a world that is about to be published."""
    attempt = Attempt(
        generation=world.generation, slices=len(world.slices), started=format_time(now), shadow=bool(world.shadow)
    )
    return (*attempts, attempt)[-MAX_ATTEMPTS:]


def make_world_status(world: World, reason: str, now: datetime) -> WorldStatus:
    """Return the record of a world that is about to be published."""
    return WorldStatus(
        generation=world.generation,
        slices=world.slices,
        coordinator=world.coordinator,
        members=hash_members(world.members),
        pods=tuple(f"{member.pod}/{member.pod_uid}" for member in world.members),
        live=world.live,
        probation=world.probation,
        shadow=world.shadow,
        since=format_time(now),
        why=reason,
    )
