"""Drills: faults that the job's owner requests by an annotation, injected at most once, and their cost.

A drill is written into the status before any component acts on it, as a world is. A restarted operator finds it there
and does not inject it again. An operator that stops between the write and the injection never injects it. Only a world
that trains normally gets a drill. `drill_injection` performs the injection after the write.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from trainingjob_api.drill import DrillRequest
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import HostReport, Progress
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_api.world import World
from trainingjob_operator.core.decide.decisions import Decision, Wait
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time, parse_time, seconds_between
from trainingjob_operator.core.units import format_duration, pluralize

type Drills = tuple[DrillStatus, ...]

MAX_DRILLS = 10
REQUEST_LIFETIME_SECONDS = 120.0
"""Seconds that a request waits for a world that trains normally. Older requests are stale and refused."""
DRILL_TIMEOUT_SECONDS = 1800.0
"""Seconds after its injection after which an unresolved drill is closed."""
GRACE_SECONDS = 3.0
"""Seconds after the end of a transient fault in which it may still have an effect."""
METRIC_DELAY_STEPS = 4
"""Steps until the metrics of a step with injected NaN are reported."""
SLICE_KINDS = frozenset({DrillKind.KILL_SLICE, DrillKind.PREEMPT})
OPERATOR_KINDS = frozenset({*SLICE_KINDS, DrillKind.KILL_HOST, DrillKind.OPERATOR_DOWN})
"""Faults that the operator injects, as soon as the status is written. The hosts' agents inject the others."""
ORDER_TIMEOUT_SECONDS = 240.0
"""Seconds that an order waits for its host, which may be evaluating or saving."""
INJECTION_TIMEOUT_SECONDS = 120.0
"""Seconds that pods may take to terminate. If the world still trains after it, the operator stopped before the
injection.
"""
TRANSIENT_KINDS = frozenset({DrillKind.NAN, DrillKind.SLOW, DrillKind.PARTITION, DrillKind.OPERATOR_DOWN})
OPEN_STATES = frozenset({"ordered", "injected"})
STATE_DESCRIPTIONS: Mapping[str, str] = {
    "ordered": "requested from the host",
    "injected": "injected",
    "recovered": "the job recovered",
    "withstood": "the world continued",
    "refused": "refused",
    "over": "ended without a result",
}
"""Description of each state for users."""
RECOVERY_BUCKETS = (
    Bucket.DETECTING,
    Bucket.DOWN,
    Bucket.RECOVERING,
    Bucket.PREPARING,
    Bucket.RESTORING,
    Bucket.COMPILING,
)
"""Buckets of the recovery time, in order."""


def update_drills(plan: Plan, seen: Observed, decision: Decision, attempts: Sequence[Attempt], now: datetime) -> Drills:
    """Return the drills after a decision: updates of the known ones, and a new one if it can begin now."""
    known = tuple(_update_drill(drill, seen, decision, attempts, now) for drill in seen.status.drills)
    request = seen.drill
    if request is None or any(drill.id == request.id for drill in known):
        return known
    new = _start_drill(plan, seen, decision, known, request, now)
    return (*known, new)[-MAX_DRILLS:] if new else known


def describe_drill(drill: DrillStatus) -> str:
    """Return a description of a drill's target and result."""
    host = "" if drill.host is None else f" of host {drill.host}"
    where = "" if drill.slice is None else f"{host} of slice {drill.slice}"
    report = f": {drill.message}" if drill.message else ""
    return f"drill {drill.kind}{where}: {STATE_DESCRIPTIONS[drill.state]}{report}"


def _start_drill(
    plan: Plan, seen: Observed, decision: Decision, known: Drills, request: DrillRequest, now: datetime
) -> DrillStatus | None:  # None: it may begin later
    """Return a new drill, to be injected or refused."""
    time = parse_time(request.requested)
    is_recent = time is not None and abs((now - time).total_seconds()) <= REQUEST_LIFETIME_SECONDS
    # The annotation may hold any time; the status must pass the API server's validation.
    requested = format_time(time if time and is_recent else now)
    new = DrillStatus(id=request.id, kind=request.kind, state="refused", requested=requested, seconds=request.seconds)
    if plan.spec.elastic.fault_injection != "allowed":
        return new.model_copy(update={"message": "`spec.elastic.faultInjection` is not `allowed`"})
    if any(drill.state in OPEN_STATES for drill in known):
        return new.model_copy(update={"message": "another drill is in progress"})
    if not is_recent:
        minutes = pluralize(round(REQUEST_LIFETIME_SECONDS / 60), "minute")
        text = f"the job did not train normally within {minutes} of the request at {request.requested}"
        return new.model_copy(update={"message": text})
    world = seen.world
    if world is None or not _is_training(seen, decision):
        return None
    target = _describe_job_failure(plan, seen, request) or _find_target(request, world, plan.shape.num_hosts)
    if isinstance(target, str):
        return new.model_copy(update={"message": target})
    is_injected = request.kind in OPERATOR_KINDS
    progress = {"state": "injected", "injected": format_time(now)} if is_injected else {"state": "ordered"}
    return new.model_copy(update={**progress, **target, "generation": world.generation})


def _describe_job_failure(plan: Plan, seen: Observed, request: DrillRequest) -> str:
    """Return why a drill would fail the job. Empty: it would not."""
    protection = plan.spec.protection
    if request.kind is not DrillKind.NAN or protection.non_finite == "skip":
        return ""
    if protection.non_finite == "stop":
        return "the drill would fail the job: `spec.protection.nonFinite` is `stop`"
    has_rollbacks_left = len(seen.status.rollbacks) < protection.max_rollbacks
    if has_rollbacks_left:
        return ""
    return f"the drill would fail the job: it has used all {protection.max_rollbacks} of `spec.protection.maxRollbacks`"


def _find_target(request: DrillRequest, world: World, num_hosts: int) -> dict[str, int] | str:
    """Return the slice and host that a drill targets, or why there is no such target."""
    if request.kind is DrillKind.OPERATOR_DOWN:
        return {}
    number = world.slices[-1] if request.slice is None else request.slice
    if number not in world.slices:
        return f"slice {number} is not in the world. Slices of the world: {', '.join(map(str, world.slices))}"
    if request.kind in SLICE_KINDS:
        return {"slice": number}
    host = num_hosts - 1 if request.host is None else request.host
    if host < num_hosts:
        return {"slice": number, "host": host}
    return f"slice {number} has no host {host}. Hosts of a slice: 0 to {num_hosts - 1}"


def _update_drill(
    drill: DrillStatus, seen: Observed, decision: Decision, attempts: Sequence[Attempt], now: datetime
) -> DrillStatus:
    """Return a drill after a decision."""
    is_same_world = seen.world is not None and seen.world.generation == drill.generation
    if drill.state == "ordered":
        return _update_ordered_drill(drill, seen, now, is_same_world=is_same_world)
    if drill.state != "injected":
        return drill
    if is_same_world and (report := _find_report(drill, seen)) and report.drill_error:  # the injection failed later
        return _close_drill(drill.model_copy(update={"injected": None}), "refused", report.drill_error)
    indices = [index for index, item in enumerate(attempts) if item.generation == drill.generation and item.ended]
    if indices and (measured := _measure_cost(drill, attempts[indices[0] :])):
        return measured
    elapsed = seconds_between(drill.injected, now)
    has_recovered = _is_training(seen, decision)
    if elapsed > DRILL_TIMEOUT_SECONDS or not (indices or is_same_world):
        return _close_drill(drill, "over", drill.message or "the job made no step after the drill")
    if has_recovered and not is_same_world:  # the recovery time is unknown
        return _close_drill(drill, "over", "the job was suspended before it recovered")
    drill = _record_detection(drill, seen, elapsed)
    if has_recovered and drill.kind in TRANSIENT_KINDS and elapsed >= _effect_seconds(drill, seen):
        return _close_drill(
            drill,
            "withstood",
            drill.message
            or f"the same world still trains after {format_duration(elapsed)}{_describe_effect(drill, seen)}",
        )
    if has_recovered and drill.kind in OPERATOR_KINDS and elapsed >= INJECTION_TIMEOUT_SECONDS:
        return _close_drill(
            drill, "over", "the operator stopped before it injected the drill, and does not inject it later"
        )
    return drill


def _effect_seconds(drill: DrillStatus, seen: Observed) -> float:
    """Return the seconds after which a drill has no effect any more on a world that still trains."""
    if drill.kind is not DrillKind.NAN:
        return drill.seconds + GRACE_SECONDS
    step = max((item.step_seconds or 0.0 for item in _list_progress(seen)), default=0.0)
    return METRIC_DELAY_STEPS * step + GRACE_SECONDS


def _describe_effect(drill: DrillStatus, seen: Observed) -> str:
    """Return a description of a drill's lasting effect on a world that still trains."""
    skipped = max((item.skipped for item in _list_progress(seen)), default=0)
    return f"; {pluralize(skipped, 'update')} skipped so far" if drill.kind is DrillKind.NAN else ""


def _list_progress(seen: Observed) -> list[Progress]:
    return [
        member_view.report.progress
        for member_view in seen.member_views
        if member_view.report and member_view.report.progress
    ]


def _update_ordered_drill(drill: DrillStatus, seen: Observed, now: datetime, *, is_same_world: bool) -> DrillStatus:
    """Return an ordered drill after the hosts' reports."""
    report = _find_report(drill, seen)
    if report and report.drill_error:
        return _close_drill(drill, "refused", report.drill_error)
    if report:
        return drill.model_copy(update={"state": "injected", "injected": format_time(now)})
    if not is_same_world:
        return _close_drill(drill, "over", "its world ended before the host injected the drill")
    is_late = seconds_between(drill.requested, now) > ORDER_TIMEOUT_SECONDS
    return _close_drill(drill, "refused", "the host did not inject the drill") if is_late else drill


def _find_report(drill: DrillStatus, seen: Observed) -> HostReport | None:  # None: no host has reported the drill
    reports = (member_view.report for member_view in seen.member_views)
    return next((report for report in reports if report and report.drill_id == drill.id), None)


def _is_training(seen: Observed, decision: Decision) -> bool:
    return isinstance(decision, Wait) and decision.reason == Reason.TRAINING and seen.has_stepped


def _record_detection(drill: DrillStatus, seen: Observed, elapsed: float) -> DrillStatus:
    """Return a drill with the time until the slowed host was named as the straggler."""
    straggler = seen.status.straggler
    if (
        drill.message
        or drill.kind is not DrillKind.SLOW
        or straggler is None
        or (straggler.slice, straggler.host) != (drill.slice, drill.host)
    ):
        return drill
    return drill.model_copy(
        update={"message": f"the host was reported as a straggler after {format_duration(elapsed)}"}
    )


def _measure_cost(drill: DrillStatus, attempts: Sequence[Attempt]) -> DrillStatus | None:  # None: not recovered yet
    """Return a drill with its cost. `attempts` begins with the world that it hit; further worlds may have failed."""
    ended = attempts[0]
    recovered = next(
        (index for index, item in enumerate(attempts) if index and item.recovery_seconds is not None), None
    )
    failed_at = parse_time(ended.ended)
    restarted_at = parse_time(attempts[recovered - 1].ended) if recovered else None
    if recovered is None or failed_at is None or restarted_at is None:
        return None
    after = attempts[recovered]
    recovery_attempts = attempts[1 : recovered + 1]
    phases = {
        bucket.value: sum(item.seconds.get(bucket, 0.0) for item in recovery_attempts) for bucket in RECOVERY_BUCKETS
    }
    phases[Bucket.DOWN.value] = sum(
        _seconds_without_world(before, later) for before, later in pairwise(attempts[: recovered + 1])
    )
    phases[Bucket.DETECTING.value] += ended.seconds.get(Bucket.DETECTING, 0.0)
    cause = ended.cause
    return drill.model_copy(
        update={
            "state": "recovered",
            "message": cause.message if cause else "",
            "cause": cause.reason if cause else "",
            "recovery_seconds": round((restarted_at - failed_at).total_seconds() + (after.recovery_seconds or 0.0), 1),
            "phases": {name: round(seconds, 3) for name, seconds in phases.items() if seconds},
            "lost_steps": max((ended.last_step or 0) - (after.first_step or 0), 0),
            "tier": after.tier,
        }
    )


def _seconds_without_world(before: Attempt, after: Attempt) -> float:
    """Return the seconds between the end of one world and the start of the next."""
    ended, started = parse_time(before.ended), parse_time(after.started)
    return seconds_between(before.ended, started) if ended and started else 0.0


def _close_drill(drill: DrillStatus, state: str, message: str) -> DrillStatus:
    return drill.model_copy(update={"state": state, "message": message})
