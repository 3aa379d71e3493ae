"""Hot standby worlds (`elastic.shadowWorld`): connected processes that wait to take over as the next smaller world.

They run beside the training world on the same hosts. The slices of a world are divided in order into groups of the next
smaller size. Remaining slices have no standby world. After a slice is lost, a complete and ready group becomes the next
world. Its name is a hash of its hosts, programs and coordinator. Equal names in the hosts' reports prove that all of
them wait in the same world, so the operator stores no assignment.
"""

import hashlib
from collections.abc import Sequence

from trainingjob_api.live import live_of
from trainingjob_api.protocol import HostReport
from trainingjob_api.world import World, join_address
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import tell_program
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.seats import Seat


def plan_shadows(plan: Plan, seen: Observed) -> tuple[World, ...]:
    """Return the standby worlds for the hosts of the committed world; none before its first step."""
    if seen.world is None or not plan.spec.elastic.shadow_world or not seen.has_stepped:
        return ()
    slices = seen.world.slices
    size = plan.find_largest(len(slices) - 1)
    if size is None:
        return ()
    groups = [slices[first : first + size] for first in range(0, len(slices) - size + 1, size)]
    return tuple(shadow for group in groups if (shadow := _plan_shadow(plan, seen.world, seen.seats, group)))


def find_waiting(plan: Plan, seen: Observed) -> tuple[World, ...]:
    """Return the standby worlds that can take over, because all their hosts wait in them."""
    return tuple(
        shadow
        for shadow in plan_shadows(plan, seen)
        if all(
            seat.report and seat.report.shadow == shadow.shadow
            for seat in seen.seats
            if shadow.find_member(seat.member.pod_uid)
        )
    )


def _plan_shadow(
    plan: Plan, world: World, seats: Sequence[Seat], group: Sequence[int]
) -> World | None:  # None: a host does not report, or has no standby port
    """Return the standby world of a group of slices."""
    chosen = [seat for seat in seats if seat.member.slice in group]
    reports = [seat.report for seat in chosen if seat.report and seat.report.shadow_port]
    if len(reports) < len(chosen):
        return None
    members = tuple(seat.member.model_copy(update={"process": process}) for process, seat in enumerate(chosen))
    shadow = World(
        generation=world.generation,
        job_uid=world.job_uid,
        coordinator=join_address(members[0].address, reports[0].shadow_port),
        members=members,
        live=live_of(plan.spec),
    )
    shadow = tell_program(shadow, plan, plan.layout(len(group)))
    return shadow.model_copy(update={"shadow": _name(shadow, reports)})


def _name(shadow: World, reports: Sequence[HostReport]) -> str:
    """Return the name of a standby world. It changes if any part changes or one of its processes ends."""
    ports = ",".join(f"{report.instance}:{report.shadow_port}" for report in reports)
    return hashlib.sha256(f"{shadow.model_dump_json()} {ports}".encode()).hexdigest()[:16]
