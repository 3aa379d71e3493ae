"""What the longer check and the earlier save of a world with repaired nodes cost, and what they save."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.simulated_jobs import HOUR, endless
from trainingjob_api.protocol import Phase
from trainingjob_api.world import PROBATION_CHECK_SECONDS
from trainingjob_operator.core.decide import world_formation
from trainingjob_operator.core.simulate import simulated_slice
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import Fault
from trainingjob_operator.core.simulate.simulated_world import SimulatedWorld, WorldState
from trainingjob_operator.core.simulate.simulation_run import simulate

PACE = Durations({2: 10.0}, world_join=5.0, save=15.0, save_block=0.0)
WORLD = SimulatedWorld(1, (0, 1), PACE, 100.0, 40, 90, 20, 40, on_probation=True)
START = 100.0 + 5.0 + PROBATION_CHECK_SECONDS

MOMENTS: dict[str, tuple[float, WorldState]] = {
    "its devices are checked": (START - 1, WorldState(Phase.RESTORING, 40, 100.0, 40)),
    "its first save is written": (START + 64, WorldState(Phase.TRAINING, 46, START + 60, 40)),
    "after a quarter of the usual steps": (START + 65, WorldState(Phase.TRAINING, 46, START + 60, 45)),
    "further saves are the usual ones": (START + 215, WorldState(Phase.TRAINING, 61, START + 210, 60)),
}


@pytest.mark.parametrize(("now", "want"), MOMENTS.values(), ids=MOMENTS)
def test_a_world_on_probation_starts_later_and_saves_sooner(now: float, want: WorldState) -> None:
    assert WORLD.state_at(now) == want


@pytest.fixture
def kept_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lost node return repaired under its name."""
    make_pod: Any = simulated_slice._make_pod
    monkeypatch.setattr(
        simulated_slice, "_make_pod", lambda number, *args: replace(make_pod(number, *args), node=f"node-{number}")
    )


LOST_AT = 1000.0
POD_START = 60.0
TWO_SIZES = replace(PACE, step_seconds={1: 24.0, 2: 12.0}, pod_start=POD_START)
OUTAGES = [pytest.param(600.0, id="a reboot"), pytest.param(30 * HOUR, id="a repair of 30 hours")]


def lose(outage: float, *, again: bool) -> list[Fault]:
    """Return the loss of a slice, and a second one between the early save and the first usual one after the growth."""
    return [Fault(LOST_AT, 1, outage), *[Fault(LOST_AT + outage + 250.0, 1, 600.0)] * again]


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize(
    ("again", "gained_steps"),
    [
        pytest.param(False, -1, id="a repair that holds costs the time of the check"),
        pytest.param(True, 5, id="a node that fails again costs fewer steps"),
    ],
)
@pytest.mark.usefixtures("kept_names")
def test_early_save_gains_more_steps_than_the_check_costs(
    outage: float, gained_steps: int, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    plan, pace = endless(1, 2), TWO_SIZES
    faults, end = lose(outage, again=again), LOST_AT + outage + 2000.0
    with_probation = simulate(plan, pace, faults, end)
    monkeypatch.setattr(world_formation, "_find_probation_processes", lambda *_: ())
    without = simulate(plan, pace, faults, end)

    assert with_probation.step - without.step == gained_steps


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outage=st.floats(60.0, 100 * HOUR), probation=st.integers(10, 1440))
@example(outage=30 * HOUR, probation=1440)
@pytest.mark.usefixtures("kept_names")
def test_returned_node_is_on_probation_for_its_time(outage: float, probation: int) -> None:
    """The return is seen once the pod of the node starts."""
    plan, pace = endless(1, 2, nodeProbation=f"{probation}m"), TWO_SIZES
    end = LOST_AT + outage + POD_START + probation * 60.0

    def nodes_at(time: float) -> list[str]:
        return [one.node for one in simulate(plan, pace, lose(outage, again=False), time).status.probation]

    assert nodes_at(end - 1.0) == ["node-1"]
    assert nodes_at(end + 1.0) == []
