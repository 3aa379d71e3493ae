"""The agent's rules for hot standby worlds: when a child joins one, and when it is ended.

A hot standby has the lowest priority on a host: it starts after the training child and the standby. It is ended as soon
as it can no longer take over, and its exit is no failure of the job. If one process of a hot standby world ends, the
whole world is useless. The operator then sees a new port in that host's report and names a new hot standby world, which
all hosts join with new processes.
"""

from dataclasses import replace

from trainingjob_agent.state import (
    Action,
    ActiveChild,
    Host,
    HotStandby,
    KillChild,
    RenewHotStandbyPort,
    SpawnHotStandby,
    StartHotStandby,
    State,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Phase
from trainingjob_api.world import World

MAX_FAILURES = 3
"""Failed hot standbys beside one world after which the host starts none until the next world."""
RESPAWN_SECONDS = 30.0
"""Seconds between the exit of a hot standby and the start of the next."""


def may_host(host: Host, state: State) -> bool:
    """Return whether the operator may count on this host for a hot standby world."""
    return host.hot_standbys_allowed and state.hot_standby_failures < MAX_FAILURES


def belongs_to(host: Host, standby_world: World, world: World) -> bool:
    """Return whether a hot standby world belongs to this world, with this host as a member."""
    is_same_world = (standby_world.job_uid, standby_world.generation) == (host.job_uid, world.generation)
    return host.hot_standbys_allowed and is_same_world and standby_world.find_member(host.pod_uid) is not None


def apply_event(state: State, hot_standby: HotStandby, event: AgentEvent) -> State:
    """Return the state after an event of a hot standby: it has finished its imports, or it waits in its world."""
    if event.ready:
        return replace(state, hot_standby=replace(hot_standby, imported=True))
    if event.waiting:
        return replace(state, hot_standby=replace(hot_standby, ready=True))
    return state


def record_exit(state: State, now: float) -> State:
    """Return the state after the exit of a hot standby. Its process id cannot be reused in that world."""
    failures = state.hot_standby_failures + 1
    return replace(
        state,
        hot_standby=None,
        hot_standby_failures=failures,
        hot_standby_after=now + RESPAWN_SECONDS,
        hot_standby_port_used=True,
    )


def can_take_over(state: State, hot_standby: HotStandby) -> bool:
    """Return whether a hot standby waits for the target world of this host."""
    return (
        state.target is not None
        and hot_standby.ready
        and hot_standby.world is not None
        and hot_standby.world.shadow == state.target.shadow
    )


def is_due(state: State) -> bool:
    """Return whether a hot standby is to be started: one is requested, and no more urgent work is left."""
    return (
        state.hot_standby is None
        and state.hot_standby_world is not None
        and state.hot_standby_failures < MAX_FAILURES
        and state.stop_deadline is None
        and state.standby is not None
        and state.standby.ready
        and state.target is not None
        and state.live is not None
        and state.target.generation == state.live.generation == state.hot_standby_world.generation
        and state.live.progress is not None
    )


def find_due(host: Host, state: State, now: float) -> tuple[State, Action] | None:  # None: no action is due
    """Return the next due action for hot standbys, and the state after it."""
    if state.hot_standby_port_used:
        return replace(state, hot_standby_port_used=False), RenewHotStandbyPort()
    hot_standby, target = state.hot_standby, state.target
    if hot_standby and not _is_useful(state, hot_standby):
        return replace(state, hot_standby=None), KillChild(hot_standby.child)
    if target and target.shadow and not hot_standby and target.generation > state.started and not state.live:
        # The other hosts of this world have started. Report this host as gone, so that the next world is formed.
        lost = ActiveChild(0, target.generation, alive=False, phase=Phase.IDLE, phase_began=now)
        return replace(state, active=lost), RenewHotStandbyPort()
    if hot_standby and hot_standby.imported and hot_standby.world is None and state.hot_standby_world:
        member = state.hot_standby_world.find_member(host.pod_uid)
        assert member is not None  # noqa: S101  # without a membership it would not have been requested
        joined = replace(hot_standby, world=state.hot_standby_world)
        return replace(state, hot_standby=joined), StartHotStandby(
            hot_standby.child, state.hot_standby_world, member.process
        )
    if is_due(state) and now >= state.hot_standby_after:
        child = state.next_child
        return replace(state, hot_standby=HotStandby(child), next_child=child + 1), SpawnHotStandby(child)
    return None


def _is_useful(state: State, hot_standby: HotStandby) -> bool:
    """Return whether a hot standby can still take over: its world still trains, or it is about to take over."""
    if state.stop_deadline is not None or state.target is None or state.hot_standby_world is None:
        return False
    if state.target.generation > state.hot_standby_world.generation:
        return can_take_over(state, hot_standby)
    return hot_standby.world is None or hot_standby.world.shadow == state.hot_standby_world.shadow
