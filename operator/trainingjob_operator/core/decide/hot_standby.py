"""Hot standby worlds (`elastic.hotStandby`): connected processes that wait to take over as the next smaller world.

They run beside the training world on the same hosts. The slices of a world are divided in order into groups of the next
smaller size. Remaining slices have no standby world. After a slice is lost, a complete and ready group becomes the next
world. Its name is a hash of its hosts, programs and coordinator. Equal names in the hosts' reports prove that all of
them wait in the same world, so the operator stores no assignment.
"""

import hashlib
from collections.abc import Sequence

from trainingjob_api.live import live_fields
from trainingjob_api.protocol import HostReport
from trainingjob_api.world import World, join_address
from trainingjob_operator.core.observe.members import MemberView
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import attach_program_config


def plan_hot_standby_worlds(plan: Plan, seen: Observed) -> tuple[World, ...]:
    """Return the standby worlds for the hosts of the committed world; none before its first step."""
    if seen.world is None or not plan.spec.elastic.hot_standby or not seen.has_stepped:
        return ()
    slices = seen.world.slices
    size = plan.find_largest_size(len(slices) - 1)
    if size is None:
        return ()
    groups = [slices[first : first + size] for first in range(0, len(slices) - size + 1, size)]
    return tuple(
        standby_world
        for group in groups
        if (standby_world := _plan_hot_standby_world(plan, seen.world, seen.member_views, group))
    )


def find_ready_standby_worlds(plan: Plan, seen: Observed) -> tuple[World, ...]:
    """Return the standby worlds that can take over, because all their hosts wait in them."""
    return tuple(
        shadow
        for shadow in plan_hot_standby_worlds(plan, seen)
        if all(
            member_view.report and member_view.report.shadow == shadow.shadow
            for member_view in seen.member_views
            if shadow.find_member(member_view.member.pod_uid)
        )
    )


def _plan_hot_standby_world(
    plan: Plan, world: World, member_views: Sequence[MemberView], group: Sequence[int]
) -> World | None:  # None: a host does not report, or has no standby port
    """Return the standby world of a group of slices."""
    chosen = [member_view for member_view in member_views if member_view.member.slice in group]
    reports = [member_view.report for member_view in chosen if member_view.report and member_view.report.shadow_port]
    if len(reports) < len(chosen):
        return None
    members = tuple(
        member_view.member.model_copy(update={"process": process}) for process, member_view in enumerate(chosen)
    )
    shadow = World(
        generation=world.generation,
        job_uid=world.job_uid,
        coordinator=join_address(members[0].address, reports[0].shadow_port),
        members=members,
        live=live_fields(plan.spec),
    )
    shadow = attach_program_config(shadow, plan, plan.layout(len(group)))
    return shadow.model_copy(update={"shadow": _standby_name(shadow, reports)})


def _standby_name(shadow: World, reports: Sequence[HostReport]) -> str:
    """Return the name of a standby world. It changes if any part changes or one of its processes ends."""
    ports = ",".join(f"{report.instance}:{report.shadow_port}" for report in reports)
    return hashlib.sha256(f"{shadow.model_dump_json()} {ports}".encode()).hexdigest()[:16]
