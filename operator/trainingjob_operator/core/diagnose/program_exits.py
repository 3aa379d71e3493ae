"""Health of a world whose hosts run a program: exit code 0 is all that the program says about its end.

The hosts of a world compute together, so they end together. The built-in trainer reports that its last step is saved. A
program on one host may end with exit code 0 while the others fail, or work on without it.
"""

from collections.abc import Sequence

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.diagnose.health import (
    DRAIN_TIMEOUT_SECONDS,
    Failed,
    Finishing,
    Health,
    Healthy,
    WorldEnd,
    assess_health,
)
from trainingjob_operator.core.diagnose.member_state import MemberState, MemberStatus
from trainingjob_operator.core.units import format_duration, pluralize


def assess_program_health(member_statuses: Sequence[MemberStatus], heartbeat_timeout: float) -> Health:
    """Return the health of a world from the states of its members. `heartbeat_timeout` is in seconds."""
    done = [item for item in member_statuses if item.state is MemberState.DONE]
    others = [item for item in member_statuses if item.state is not MemberState.DONE]
    if not done or not others:
        return assess_health(member_statuses, heartbeat_timeout)
    health = assess_health(others, heartbeat_timeout)
    first = max(done, key=lambda item: item.stalled_for)
    if not isinstance(health, Healthy):
        return health
    return _end_by_early_exit(first, len(others)) if first.stalled_for > DRAIN_TIMEOUT_SECONDS else Finishing()


def _end_by_early_exit(first: MemberStatus, num_others: int) -> Failed:
    member = first.member_view.member
    working = f"{pluralize(num_others, 'host')} still {'works' if num_others == 1 else 'work'}"
    message = (
        f"host {member.host} of slice {member.slice}: the program ended with exit code 0, but {working} "
        f"{format_duration(first.stalled_for)} later. It must end on all hosts together, after the last step"
    )
    cause = Cause(
        reason=FailureReason.CRASH, message=message, slice=member.slice, host=member.host, node=member.node, exit_code=0
    )
    return Failed(WorldEnd(cause, is_counted=True, seconds_ago=first.stalled_for))
