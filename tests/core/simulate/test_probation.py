"""What the longer check and the earlier save of a world with repaired nodes cost, and what they save."""

from dataclasses import replace
from typing import Any

import pytest

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


LOSS = Fault(1000.0, 1, 600.0)
AGAIN = Fault(1850.0, 1, 600.0)
"""A second loss, between the early save and the first usual one after the growth."""


@pytest.mark.parametrize(
    ("faults", "gained_steps"),
    [
        pytest.param([LOSS], -1, id="a repair that holds costs the time of the check"),
        pytest.param([LOSS, AGAIN], 5, id="a node that fails again costs fewer steps"),
    ],
)
@pytest.mark.usefixtures("kept_names")
def test_early_save_gains_more_steps_than_the_check_costs(
    faults: list[Fault], gained_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, pace = endless(1, 2), replace(PACE, step_seconds={1: 24.0, 2: 12.0}, pod_start=60.0)
    with_probation = simulate(plan, pace, faults, HOUR)
    monkeypatch.setattr(world_formation, "_find_probation_processes", lambda *_: ())
    without = simulate(plan, pace, faults, HOUR)

    assert with_probation.step - without.step == gained_steps
