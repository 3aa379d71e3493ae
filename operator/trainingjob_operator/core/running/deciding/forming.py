"""World formation: which slices, in which order of processes, under which generation.

Slices of the previous world are preferred, because their snapshots and caches stay useful. Slices whose hosts already
wait in a hot standby world (`elastic.shadowWorld`) of that size come first.
"""

from collections.abc import Sequence

from trainingjob_api.live import live_of
from trainingjob_api.world import Member, Rollback, World, join_address
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import tell_program
from trainingjob_operator.core.running.judging.bad_nodes import Faults, leave_out
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.judging.notices import stay_clear
from trainingjob_operator.core.running.judging.worn import find_worn
from trainingjob_operator.core.running.observing import lineage
from trainingjob_operator.core.running.observing.observe import Observed, Slice
from trainingjob_operator.core.running.observing.progress import find_committed
from trainingjob_operator.core.running.observing.seats import fingerprint

MAX_AHEAD = 1_000_000
"""Maximum lead of a host's generation over the status. A larger one is invalid: it means a world per second for 11
days.
"""


def list_ready(plan: Plan, seen: Observed, end: End | None = None) -> list[Slice]:
    """Return the slices whose hosts can all join a world now. `end`: how the world has just ended."""
    window, worn = plan.silence_seconds, find_worn(seen, end)
    return [one for one in seen.slices if one.is_ready(window) and one.number not in worn]


def leave_out_unprepared(plan: Plan, seen: Observed, ready: Sequence[Slice]) -> Sequence[Slice]:
    """Return the ready slices without new pods that lack a standby process, if the others can form a world.

    A standby process imports for seconds, longer on a busy machine. The next world would wait for it. The slice joins
    later.
    """
    members = {seat.member.pod_uid for seat in seen.seats}
    prepared = [
        one
        for one in ready
        if all(host.has_standby or (host.pod is not None and host.pod.uid in members) for host in one.hosts)
    ]
    return prepared if plan.find_largest(len(prepared)) else ready


def find_sound(plan: Plan, seen: Observed, ready: Sequence[Slice], faults: Faults) -> list[Slice]:
    """Return the slices to form a world of, without bad nodes and termination notices if the others suffice."""
    return stay_clear(plan, leave_out(plan, seen, ready, faults))


def choose_slices(
    plan: Plan, healthy: Sequence[Slice], keep: Sequence[int] = (), waiting: Sequence[World] = ()
) -> tuple[Slice, ...]:
    """Return the slices of the largest world that healthy slices can form, ascending; empty if they are too few.

    `waiting` are the hot standby worlds that can take over.
    """
    size = plan.find_largest(len(healthy))
    numbers = {one.number for one in healthy}
    shadow = next((one.slices for one in waiting if len(one.slices) == size and numbers.issuperset(one.slices)), ())
    first, then = set(shadow), set(keep)
    preferred = sorted(healthy, key=lambda one: (one.number not in first, one.number not in then, one.number))
    return tuple(sorted(preferred[: size or 0], key=lambda one: one.number))


def form_world(
    plan: Plan,
    seen: Observed,
    slices: Sequence[Slice],
    rollbacks: Sequence[Rollback],
    waiting: Sequence[World] = (),
) -> World:
    """Return the next world over slices whose hosts have all reported.

    If exactly these hosts wait in a hot standby world, the next world takes over its coordinator and its processes.
    """
    hosts = [host for one in slices for host in one.hosts]
    seated = [(host, host.pod, host.news.report) for host in hosts if host.pod and host.news]
    generation = next_generation(seen)
    members = tuple(
        Member(
            process=process,
            slice=host.slice,
            host=host.host,
            pod=pod.name,
            pod_uid=pod.uid,
            address=pod.address,
            node=pod.node,
        )
        for process, (host, pod, _) in enumerate(seated)
    )
    _, leader, report = seated[0]
    shadow = next((one for one in waiting if fingerprint(one.members) == fingerprint(members)), None)
    world = World(
        generation=generation,
        job_uid=seen.uid,
        coordinator=shadow.coordinator if shadow else join_address(leader.address, report.port),
        members=members,
        lineage=lineage.before(seen.lineage, generation),
        rollbacks=tuple(rollbacks),
        committed=find_committed(seen),
        live=live_of(plan.spec),
        shadow=shadow.shadow if shadow else "",
    )
    return tell_program(world, plan, plan.layout(len(slices)))


def next_generation(seen: Observed) -> int:
    """Return a number above every known generation of this job.

    A host may be ahead of the status only after the status was restored from a backup. Larger leads are ignored as
    invalid.
    """
    known = [
        seen.hearing.burned,
        seen.status.world.generation if seen.status.world else 0,
        *(attempt.generation for attempt in seen.status.attempts),
        *(span.generation for span in seen.lineage),
    ]
    newest = max(known)
    reported = (news.report.generation for news in seen.hearing.news.values())
    return max(newest, *(one for one in reported if one <= newest + MAX_AHEAD)) + 1
