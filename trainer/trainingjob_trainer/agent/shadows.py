"""The rules of an agent about shadow worlds: when a child begins to wait in one, and when it waits in vain.

A shadow is what a host can best do without: it comes after the child that trains and after the standby, is ended as
soon as it can no longer take over, and its end is no failure of the job. Where one process of a shadow world ends, all
of them are of no use: the operator sees another port from that host and names another shadow world, which all join
with new processes.
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
"""Shadows that may end beside one world before the host has no part in them until the next world."""
PAUSE_SECONDS = 30.0
"""After a shadow that ended by itself, until the next one imports."""


def has_part(host: Host, state: State) -> bool:
    """Return whether the operator may count on this host for a shadow world."""
    return host.shadows and state.shadow_failures < TRIES


def is_beside(host: Host, shadow: World, world: World) -> bool:
    """Return whether a shadow world waits beside this world, and this host is to be in it."""
    place = (shadow.job_uid, shadow.generation) == (host.job_uid, world.generation)
    return host.shadows and place and shadow.find_member(host.pod_uid) is not None


def hear(state: State, shadow: Shadow, event: Event) -> State:
    """Return the state after a word of a shadow: it has imported everything, or it waits."""
    if event.ready:
        return replace(state, shadow=replace(shadow, imported=True))
    if event.waiting:
        return replace(state, shadow=replace(shadow, ready=True))
    return state


def bury(state: State, now: float) -> State:
    """Return the state after the end of a shadow. In its world the number that it had is taken for good."""
    failures = state.shadow_failures + 1
    return replace(state, shadow=None, shadow_failures=failures, shadow_after=now + PAUSE_SECONDS, worn=True)


def takes_over(state: State, shadow: Shadow) -> bool:
    """Return whether a shadow waits for the very world that this host is to be in."""
    return (
        state.target is not None
        and shadow.ready
        and shadow.world is not None
        and shadow.world.shadow == state.target.shadow
    )


def is_due(state: State) -> bool:
    """Return whether a shadow is to be started: one is asked for, and nothing more urgent is left to do."""
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


def find_due(host: Host, state: State, now: float) -> tuple[State, Action] | None:  # None: all is as it should be
    """Return the one action about shadows that is due next, and what is known once it is done."""
    if state.worn:
        return replace(state, worn=False), RenewPort()
    shadow, target = state.shadow, state.target
    if shadow and not _is_wanted(state, shadow):
        return replace(state, shadow=None), KillChild(shadow.child)
    if target and target.shadow and not shadow and target.generation > state.started and not state.live:
        # The others of this world have begun: say that we are not in it, so that the next one is formed.
        gone = Active(0, target.generation, alive=False, phase=Phase.IDLE, since=now)
        return replace(state, active=gone), RenewPort()
    if shadow and shadow.imported and shadow.world is None and state.asked:
        member = state.asked.find_member(host.pod_uid)
        assert member is not None  # noqa: S101  # it would not have been asked for
        joined = replace(shadow, world=state.asked)
        return replace(state, shadow=joined), StartShadow(shadow.child, state.asked, member.process)
    if is_due(state) and now >= state.shadow_after:
        child = state.next_child
        return replace(state, shadow=Shadow(child), next_child=child + 1), SpawnShadow(child)
    return None


def _is_wanted(state: State, shadow: Shadow) -> bool:
    """Return whether a shadow can still take over: the world that it waits beside lives, or it is its turn."""
    if state.stop_by is not None or state.target is None or state.asked is None:
        return False
    if state.target.generation > state.asked.generation:
        return takes_over(state, shadow)
    return shadow.world is None or shadow.world.shadow == state.asked.shadow
