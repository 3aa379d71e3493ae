"""Shadow worlds of a simulation: who waits in them, who ends, and what must hold when one takes over."""

from collections.abc import Iterable, Iterator, Sequence

from tests.support.agents import Agent, Child
from trainingjob_agent.state import ChildExited
from trainingjob_api.world import World


def list_joined(agents: Iterable[Agent], since: float) -> Iterator[list[tuple[Agent, Child]]]:
    """Yield who waits in each shadow world that all its hosts have joined, the last of them no later than `since`."""
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
    """Let the shadow of a host end by itself; return whether there was one."""
    child = next((one for one in agent.children.values() if one.shadow and not one.world), None)
    if child:
        del agent.children[child.number]
        agent.hear(ChildExited(child.number, code=1), now)
    return child is not None


def check(world: World, children: Sequence[Child]) -> None:
    """Raise unless all of a world waited in the shadow world that it names, if any, with the values that hold now."""
    if world.shadow:
        waited = [child.shadow for child in children if child.shadow]
        assert [one.shadow for one in waited] == [world.shadow] * len(children), "who takes over does so as a whole"
        assert all(one.live == world.live for one in waited), "and waited with the values of the spec that holds"
