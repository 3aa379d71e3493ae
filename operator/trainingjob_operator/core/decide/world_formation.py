"""World formation: which slices, in which order of processes, under which generation.

Slices of the previous world are preferred, because their snapshots and caches stay useful. Slices whose hosts already
wait in a hot standby world (`elastic.hotStandby`) of that size come first. New slices on nodes on probation come last,
and the world lists their processes.
"""

from collections.abc import Sequence

from trainingjob_api.live import live_fields
from trainingjob_api.world import Member, Rollback, World, join_address
from trainingjob_operator.core.diagnose.avoided_nodes import exclude_avoided_slices
from trainingjob_operator.core.diagnose.bad_nodes import Faults, exclude_bad_nodes
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_probation import Probations, find_probation_nodes, list_probations
from trainingjob_operator.core.diagnose.slice_recreation import find_slices_to_recreate
from trainingjob_operator.core.diagnose.termination_notices import exclude_draining_slices
from trainingjob_operator.core.observe import lineage
from trainingjob_operator.core.observe.members import hash_members
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.observe.progress import find_committed_step
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import attach_program_config

STARTING_SLICES_SECONDS = 30.0
"""Seconds for which the first world or a larger one waits for a further slice that has all its pods scheduled.

Another world costs all hosts more than this wait.
"""
MAX_GENERATION_LEAD = 1_000_000
"""Maximum lead of a host's generation over the status. A larger one is invalid: it means a world per second for 11
days.
"""


def list_ready_slices(plan: Plan, seen: Observed, end: WorldEnd | None = None) -> list[Slice]:
    """Return the slices whose hosts can all join a world now. `end`: how the world has just ended."""
    heartbeat_timeout, to_recreate = plan.heartbeat_timeout_seconds, find_slices_to_recreate(seen, end)
    return [slice_ for slice_ in seen.slices if slice_.is_ready(heartbeat_timeout) and slice_.number not in to_recreate]


def count_starting_slices(seen: Observed, ready: Sequence[Slice]) -> int:
    """Return the number of slices that are about to be ready: their pods are scheduled and have no known problem."""
    are_ready = {slice_.number for slice_ in ready}
    return sum(slice_.is_starting for slice_ in seen.slices if slice_.number not in are_ready)


def exclude_without_standby(plan: Plan, seen: Observed, ready: Sequence[Slice]) -> Sequence[Slice]:
    """Return the ready slices without new pods that lack a standby process, if the others can form a world.

    A standby process imports for seconds, longer on a busy machine. The next world would wait for it. The slice joins
    later.
    """
    members = {member_view.member.pod_uid for member_view in seen.member_views}
    prepared = [
        slice_
        for slice_ in ready
        if all(host.has_standby or (host.pod is not None and host.pod.uid in members) for host in slice_.hosts)
    ]
    return prepared if plan.find_largest_size(len(prepared)) else ready


def list_usable_slices(plan: Plan, seen: Observed, ready: Sequence[Slice], faults: Faults) -> list[Slice]:
    """Return the slices to form a world of, without bad, avoided and terminating nodes if the others suffice."""
    healthy = exclude_bad_nodes(plan, seen, ready, faults)
    return exclude_draining_slices(plan, exclude_avoided_slices(plan, seen, healthy))


def choose_slices(
    plan: Plan,
    healthy: Sequence[Slice],
    probations: Probations,
    preferred_numbers: Sequence[int] = (),
    waiting: Sequence[World] = (),
) -> tuple[Slice, ...]:
    """Return the slices of the largest world that healthy slices can form, ascending; empty if they are too few.

    `waiting` are the hot standby worlds that can take over.
    """
    size = plan.find_largest_size(len(healthy))
    numbers = {slice_.number for slice_ in healthy}
    shadow = next(
        (world.slices for world in waiting if len(world.slices) == size and numbers.issuperset(world.slices)), ()
    )
    first, current_numbers, on_probation = set(shadow), set(preferred_numbers), find_probation_nodes(probations)

    def rank(slice_: Slice) -> tuple[bool, bool, bool, int]:
        is_last = bool(on_probation) and bool(slice_.nodes & on_probation)
        return slice_.number not in first, slice_.number not in current_numbers, is_last, slice_.number

    preferred = sorted(healthy, key=rank)
    return tuple(sorted(preferred[: size or 0], key=lambda slice_: slice_.number))


def form_world(
    plan: Plan,
    seen: Observed,
    slices: Sequence[Slice],
    rollbacks: Sequence[Rollback],
    standby_worlds: Sequence[World] = (),
) -> World:
    """Return the next world over slices whose hosts have all reported.

    If exactly these hosts wait in a hot standby world, the next world takes over its coordinator and its processes.
    """
    hosts = [host for slice_ in slices for host in slice_.hosts]
    hosts_with_reports = [
        (host, host.pod, host.latest_report.report) for host in hosts if host.pod and host.latest_report
    ]
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
        for process, (host, pod, _) in enumerate(hosts_with_reports)
    )
    _, leader, report = hosts_with_reports[0]
    shadow = next(
        (
            standby_world
            for standby_world in standby_worlds
            if hash_members(standby_world.members) == hash_members(members)
        ),
        None,
    )
    world = World(
        generation=generation,
        job_uid=seen.uid,
        coordinator=shadow.coordinator if shadow else join_address(leader.address, report.port),
        members=members,
        lineage=lineage.lineage_before(seen.lineage, generation),
        rollbacks=tuple(rollbacks),
        committed=find_committed_step(seen),
        live=live_fields(plan.spec),
        probation=_find_probation_processes(seen, members),
        shadow=shadow.shadow if shadow else "",
    )
    return attach_program_config(world, plan, plan.layout(len(slices)))


def _find_probation_processes(seen: Observed, members: Sequence[Member]) -> tuple[int, ...]:
    """Return the processes of pods that are new on a node on probation. The devices of other pods have trained."""
    known = {member_view.member.pod_uid for member_view in seen.member_views}
    nodes = find_probation_nodes(list_probations(seen.status))
    return tuple(member.process for member in members if member.node in nodes and member.pod_uid not in known)


def next_generation(seen: Observed) -> int:
    """Return a number above every known generation of this job.

    A host or the checkpoint folder may be ahead of the status only after the status was lost or restored from a backup.
    Larger leads are ignored as invalid.
    """
    known = [
        seen.heartbeats.max_unconfirmed_generation,
        seen.status.world.generation if seen.status.world else 0,
        *(attempt.generation for attempt in seen.status.attempts),
        *(span.generation for span in seen.lineage),
    ]
    newest = max(known)
    reports = [latest_report.report for latest_report in seen.heartbeats.latest_reports.values()]
    in_storage = (report.failure.newest_generation for report in reports if report.failure)
    reported = (*(report.generation for report in reports), *in_storage)
    return max([newest, *(generation for generation in reported if generation <= newest + MAX_GENERATION_LEAD)]) + 1
