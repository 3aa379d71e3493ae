"""Hot standby worlds of a simulation: their members, their ends, and the invariants of a takeover."""

from collections.abc import Iterable, Iterator, Sequence

from tests.support.agents import Agent, Child
from trainingjob_agent.state import ChildExited
from trainingjob_api.world import World


def list_joined(agents: Iterable[Agent], since: float) -> Iterator[list[tuple[Agent, Child]]]:
    """Yield the members of each hot standby world that all its hosts joined no later than `since`."""
    worlds: dict[str, list[tuple[Agent, Child]]] = {}
    for agent in agents:
        for child in agent.children.values():
            if child.shadow and not child.world:
                worlds.setdefault(child.shadow.shadow, []).append((agent, child))
    for joined in worlds.values():
        shadow = joined[0][1].shadow
        if shadow and len(joined) == len(shadow.members) and max(child.started for _, child in joined) <= since:
            yield joined


def end(agent: Agent, now: float) -> bool:
    """End the hot standby process of a host; return whether there was one."""
    child = next((one for one in agent.children.values() if one.shadow and not one.world), None)
    if child:
        del agent.children[child.number]
        agent.hear(ChildExited(child.number, code=1), now)
    return child is not None


def check(world: World, children: Sequence[Child]) -> None:
    """Raise unless all members of a world waited in its hot standby world, if any, with the current values."""
    if world.shadow:
        waited = [child.shadow for child in children if child.shadow]
        assert [one.shadow for one in waited] == [world.shadow] * len(children), "who takes over does so as a whole"
        assert all(one.live == world.live for one in waited), "and waited with the values of the spec that holds"
