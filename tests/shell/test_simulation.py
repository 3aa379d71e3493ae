"""Random faults over a job's whole life: whatever happens, one world at a time, and the job ends when faults stop."""

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fake_cluster import OperatorKilledError
from tests.support.simulation import Simulation
from trainingjob_operator.shell.interfaces import ClusterUnavailableError

NODES = ("node-0-0", "node-0-1", "node-1-0", "node-1-1")
nodes = st.sampled_from(NODES)
slices = st.sampled_from((0, 1))
writes = st.integers(1, 3)

faults = st.one_of(
    st.tuples(st.just("kill_node"), nodes),
    st.tuples(st.just("kill_slice"), slices),
    st.tuples(st.just("restore"), st.none()),
    st.tuples(st.just("crash_child"), nodes),
    st.tuples(st.just("stop_child"), nodes),
    st.tuples(st.just("end_shadow"), nodes),
    st.tuples(st.just("delete_pod"), nodes),
    st.tuples(st.just("cut_off"), nodes),
    st.tuples(st.just("reconnect"), st.none()),
    st.tuples(st.just("restart_operator"), st.none()),
    st.tuples(st.just("operator_away"), st.none()),
    st.tuples(st.just("kill_before_write"), writes),
    st.tuples(st.just("kill_after_write"), writes),
    st.tuples(st.just("lose_before_write"), writes),
    st.tuples(st.just("lose_after_write"), writes),
    st.tuples(st.just("stale_reads"), st.integers(1, 5)),
    st.tuples(st.just("foreign_write"), st.none()),
)
schedules = st.lists(st.tuples(st.integers(0, 40), faults), max_size=8)


class Chaos:
    """Injects faults into a simulation, and removes them."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.num_crashes = 0

    def strike(self, kind: str, what: object) -> None:
        """Bring in one fault."""
        sim = self.sim
        simple = {
            "restore": self.restore,
            "reconnect": self.reconnect,
            "restart_operator": sim.restart_operator,
            "foreign_write": lambda: sim.cluster.touch(sim.job),
        }
        if kind in simple:
            simple[kind]()
        elif kind.startswith("kill_slice"):
            for host in (0, 1):
                sim.kill_node(f"node-{what}-{host}")
        elif kind.endswith("_child"):
            self.num_crashes += self.harm_child(kind, str(what))
        elif kind == "cut_off":
            for agent in sim.agents.values():
                agent.cut_off = agent.cut_off or agent.node == what
        elif kind == "operator_away":
            sim.operator_up = False
        elif kind == "stale_reads":
            sim.cluster.stale_reads = int(str(what))
        elif kind.endswith("_write"):
            self.arm(kind, int(str(what)))
        else:
            getattr(sim, kind)(what)

    def harm_child(self, kind: str, node: str) -> bool:
        """Let the child on a node fail or stall; return whether there was one."""
        if kind == "stop_child":
            return self.sim.stop_child(node)
        return self.sim.crash_child(node, f"ValueError: number {self.num_crashes}")

    def arm(self, kind: str, at: int) -> None:
        """Kill the operator, or stop the API server, before or after one of the next writes."""
        error: BaseException = OperatorKilledError() if kind.startswith("kill") else ClusterUnavailableError("gone")
        left = at

        def fault(write: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise error

        setattr(self.sim.cluster, "before" if "before" in kind else "after", fault)

    def restore(self) -> None:
        for name in NODES:
            if not self.sim.cluster.nodes[name].up:
                self.sim.restore_node(name)

    def reconnect(self) -> None:
        for agent in self.sim.agents.values():
            agent.cut_off = False

    def stop(self) -> None:
        self.restore()
        self.reconnect()
        if not self.sim.operator_up:
            self.sim.restart_operator()


async def live(
    schedule: list[tuple[int, tuple[str, object]]], *, shadow_world: bool = True
) -> tuple[Simulation, Chaos]:
    sim = Simulation(
        {
            "elastic": {
                "growCooldown": "5s",
                "maxRestarts": 100,
                "maxRestartsWithoutCommit": 100,
                "hotStandby": shadow_world,
            }
        },
        total=30,
    )
    chaos = Chaos(sim)
    due = sorted(schedule, key=lambda item: item[0])
    for moment in range(82):
        while due and due[0][0] * 2 <= moment:
            chaos.strike(*due.pop(0)[1])
        await sim.tick()
    chaos.stop()
    for _ in range(5):  # an armed fault may still strike, and the operator comes back each time
        await sim.run(150, until="Succeeded")
        chaos.stop()
    await sim.run(20)
    return sim, chaos


@pytest.mark.thorough
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(schedules, st.booleans())
def test_a_job_ends_well_when_faults_stop(
    schedule: list[tuple[int, tuple[str, object]]],
    shadow_world: bool,
) -> None:
    sim, chaos = asyncio.run(live(schedule, shadow_world=shadow_world))

    status = sim.status
    assert status.phase == "Succeeded", f"{status.phase}: {status.conditions}"
    assert status.restarts.counted <= chaos.num_crashes
    assert status.progress
    assert status.progress.step == 30
    assert {str(pod["status"]["phase"]) for pod in sim.cluster.all("Pod")} <= {"Succeeded", "Pending", "Failed"}
    spans = status.lineage
    assert [span.first for span in spans] == sorted(span.first for span in spans)
    assert all(later.first == (earlier.last or 0) + 1 for earlier, later in itertools.pairwise(spans))
