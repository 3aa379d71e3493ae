"""The agent's rules for hot standby worlds: when a child joins one, and when it is ended.

A hot standby has the lowest priority on a host: it starts after the training child and the standby. It is ended as soon
as it can no longer take over, and its exit is no failure of the job. If one process of a hot standby world ends, the
whole world is useless. The operator then sees a new port in that host's report and names a new hot standby world, which
all hosts join with new processes.
"""

from dataclasses import replace

from trainingjob_api.protocol import Phase
from trainingjob_api.world import World
from trainingjob_trainer.agent.state import (
    Action,
    Active,
    Host,
    KillChild,
    RenewPort,
    Shadow,
    SpawnShadow,
    StartShadow,
    State,
)
from trainingjob_trainer.wire import Event

TRIES = 3
"""Failed hot standbys beside one world after which the host starts none until the next world."""
PAUSE_SECONDS = 30.0
"""Seconds between the exit of a hot standby and the start of the next."""


def has_part(host: Host, state: State) -> bool:
    """Return whether the operator may count on this host for a hot standby world."""
    return host.shadows and state.shadow_failures < TRIES


def is_beside(host: Host, shadow: World, world: World) -> bool:
    """Return whether a hot standby world belongs to this world, with this host as a member."""
    place = (shadow.job_uid, shadow.generation) == (host.job_uid, world.generation)
    return host.shadows and place and shadow.find_member(host.pod_uid) is not None


def hear(state: State, shadow: Shadow, event: Event) -> State:
    """Return the state after an event of a hot standby: it has finished its imports, or it waits in its world."""
    if event.ready:
        return replace(state, shadow=replace(shadow, imported=True))
    if event.waiting:
        return replace(state, shadow=replace(shadow, ready=True))
    return state


def bury(state: State, now: float) -> State:
    """Return the state after the exit of a hot standby. Its process id cannot be reused in that world."""
    failures = state.shadow_failures + 1
    return replace(state, shadow=None, shadow_failures=failures, shadow_after=now + PAUSE_SECONDS, worn=True)


def takes_over(state: State, shadow: Shadow) -> bool:
    """Return whether a hot standby waits for the target world of this host."""
    return (
        state.target is not None
        and shadow.ready
        and shadow.world is not None
        and shadow.world.shadow == state.target.shadow
    )


def is_due(state: State) -> bool:
    """Return whether a hot standby is to be started: one is requested, and no more urgent work is left."""
    return (
        state.shadow is None
        and state.asked is not None
        and state.shadow_failures < TRIES
        and state.stop_by is None
        and state.standby is not None
        and state.standby.ready
        and state.target is not None
        and state.live is not None
        and state.target.generation == state.live.generation == state.asked.generation
        and state.live.progress is not None
    )


def find_due(host: Host, state: State, now: float) -> tuple[State, Action] | None:  # None: no action is due
    """Return the next due action for hot standbys, and the state after it."""
    if state.worn:
        return replace(state, worn=False), RenewPort()
    shadow, target = state.shadow, state.target
    if shadow and not _is_wanted(state, shadow):
        return replace(state, shadow=None), KillChild(shadow.child)
    if target and target.shadow and not shadow and target.generation > state.started and not state.live:
        # The other hosts of this world have started. Report this host as gone, so that the next world is formed.
        gone = Active(0, target.generation, alive=False, phase=Phase.IDLE, since=now)
        return replace(state, active=gone), RenewPort()
    if shadow and shadow.imported and shadow.world is None and state.asked:
        member = state.asked.find_member(host.pod_uid)
        assert member is not None  # noqa: S101  # without a membership it would not have been requested
        joined = replace(shadow, world=state.asked)
        return replace(state, shadow=joined), StartShadow(shadow.child, state.asked, member.process)
    if is_due(state) and now >= state.shadow_after:
        child = state.next_child
        return replace(state, shadow=Shadow(child), next_child=child + 1), SpawnShadow(child)
    return None


def _is_wanted(state: State, shadow: Shadow) -> bool:
    """Return whether a hot standby can still take over: its world still trains, or it is about to take over."""
    if state.stop_by is not None or state.target is None or state.asked is None:
        return False
    if state.target.generation > state.asked.generation:
        return takes_over(state, shadow)
    return shadow.world is None or shadow.world.shadow == state.asked.shadow
