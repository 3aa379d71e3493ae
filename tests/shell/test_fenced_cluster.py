"""An operator that is not the leader writes nothing, even if it loses the Lease in the middle of a reconciliation."""

import inspect

import pytest

from tests.support.simulation import Simulation
from trainingjob_operator.shell.fenced_cluster import FencedCluster
from trainingjob_operator.shell.interfaces import Cluster, ClusterUnavailableError

METHODS = [name for name, _ in inspect.getmembers(Cluster, inspect.isfunction) if not name.startswith("_")]
READS = ["read_children", "read_job"]
WRITES = sorted({*METHODS} - {*READS})


class Recorder:
    """A cluster that records its calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str):
        async def call(*arguments: object, **options: object) -> dict[str, object]:
            self.called.append(name)
            return {}

        return call


def call(cluster: object, name: str):
    """Call a method of the port with empty arguments."""
    parameters = list(inspect.signature(getattr(Cluster, name)).parameters.values())[1:]
    keywords = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    return getattr(cluster, name)(*({} for one in parameters if one.kind is not one.KEYWORD_ONLY), **keywords)


@pytest.mark.parametrize("name", METHODS)
async def test_only_the_leader_writes(name: str) -> None:
    recorder, leading = Recorder(), True
    fenced = FencedCluster(recorder, lambda: leading)  # type: ignore[arg-type]
    await call(fenced, name)
    assert recorder.called == [name]

    leading = False
    if name in WRITES:
        with pytest.raises(ClusterUnavailableError, match="not the leader"):
            await call(fenced, name)
    else:
        await call(fenced, name)

    assert recorder.called == [name] * (1 + (name in READS))


def lose_at(sim: Simulation, number: int) -> None:
    """Lose the Lease while one of the next writes is in flight to the API server."""
    left = number

    def lose(write: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            sim.is_leading = False

    sim.cluster.before = lose


async def live(sim: Simulation) -> None:
    """Let a job form, lose a node, recover it and complete, so that reconciliations write, create and delete."""
    await sim.run(20)
    sim.kill_node("node-1-0")
    await sim.run(45)
    sim.restore_node("node-1-0")
    await sim.run(40)


NUM_WRITES = 20


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(1, NUM_WRITES + 1))
async def test_after_the_lease_is_lost_within_a_look_nothing_is_written(number: int) -> None:
    sim = Simulation(total=60)
    lose_at(sim, number)

    await live(sim)

    assert len(sim.cluster.writes) == number, "the write that was on its way is the last one"


async def test_a_claim_that_was_written_when_the_lease_was_lost_is_not_announced() -> None:
    sim = Simulation()
    while sim.status.world is None:
        sim.cluster.before = lambda write: setattr(sim, "is_leading", write != "status TrainingJob")
        sim.is_leading = True
        await sim.tick()
        sim.cluster.before = lambda write: None

    assert sim.status.world.generation == 1
    await sim.report()
    assert sim.announced == {}, "by now another operator may have written another world"
