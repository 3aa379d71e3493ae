"""A simulated world: what its hosts report at any time, and what of their work is saved."""

from dataclasses import replace

import pytest

from trainingjob_api.protocol import Phase
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.simulated_world import SimulatedWorld, WorldState

PACE = Durations({2: 10.0}, world_join=5.0, save=25.0, save_block=0.0)
WORLD = SimulatedWorld(
    generation=1,
    slices=(0, 1),
    durations=PACE,
    formed_at=100.0,
    restored_step=40,
    final_step=50,
    save_interval=4,
    committed_step=36,
)
LEAVING = WORLD.drain(127.0)
MOVING = replace(WORLD, snapshot_interval=5, durations=replace(PACE, snapshot_copy=0.0)).drain(127.0, moves=True)
BROKEN = WORLD.lose_member(127.0)

MOMENTS: dict[str, tuple[SimulatedWorld, float, WorldState]] = {
    "it joins": (WORLD, 104.0, WorldState(Phase.RESTORING, 40, 100.0, 36)),
    "its first step": (WORLD, 114.0, WorldState(Phase.TRAINING, 40, 105.0, 36)),
    "a step is done": (WORLD, 115.0, WorldState(Phase.TRAINING, 41, 115.0, 36)),
    "what was due before it is being saved": (WORLD, 139.0, WorldState(Phase.TRAINING, 43, 135.0, 36)),
    "what was due before it is committed": (WORLD, 140.0, WorldState(Phase.TRAINING, 43, 135.0, 41)),
    "a save is under way": (WORLD, 169.0, WorldState(Phase.TRAINING, 46, 165.0, 41)),
    "a save is committed": (WORLD, 170.0, WorldState(Phase.TRAINING, 46, 165.0, 44)),
    "the last step is being saved": (WORLD, 210.0, WorldState(Phase.SAVING, 50, 205.0, 48)),
    "all is done": (WORLD, 230.0, WorldState(Phase.DONE, 50, 230.0, 50)),
    "asked to leave": (LEAVING, 134.0, WorldState(Phase.TRAINING, 42, 125.0, 36)),
    "it saves at the next step": (LEAVING, 136.0, WorldState(Phase.SAVING, 43, 135.0, 36)),
    "it has left": (LEAVING, 160.0, WorldState(Phase.LEFT, 43, 160.0, 43)),
    "it has moved, and saved nothing": (MOVING, 135.0, WorldState(Phase.LEFT, 43, 135.0, 36)),
    "it has moved, and what was saved meanwhile is": (
        replace(MOVING, drain_requested_at=142.0),
        170.0,
        WorldState(Phase.LEFT, 44, 145.0, 41),
    ),
    "a member is lost": (BROKEN, 1000.0, WorldState(Phase.TRAINING, 42, 125.0, 36)),
}


@pytest.mark.parametrize(("world", "now", "want"), MOMENTS.values(), ids=MOMENTS.keys())
def test_a_moment(world: SimulatedWorld, now: float, want: WorldState) -> None:
    assert world.state_at(now) == want


def test_world_gets_one_request_to_drain() -> None:
    assert LEAVING.drain(150.0) == LEAVING
    assert LEAVING.drain(150.0, moves=True) == LEAVING
    assert MOVING.drain(150.0, moves=True) == MOVING


def test_world_that_resizes_can_still_get_a_request_to_save() -> None:
    assert MOVING.drain(128.0).state_at(1000.0) == LEAVING.state_at(1000.0)


def test_world_that_resizes_at_the_last_step_is_completed() -> None:
    assert WORLD.drain(204.0, moves=True).state_at(230.0) == WorldState(Phase.DONE, 50, 230.0, 50)


def test_world_trains_a_step_before_it_drains() -> None:
    assert WORLD.drain(101.0).state_at(1000.0).step == 41


def test_drained_world_needs_no_members() -> None:
    assert LEAVING.lose_member(161.0) == LEAVING
    assert BROKEN.lose_member(140.0) == BROKEN


def test_saves_and_snapshots_take_their_share_of_the_steps() -> None:
    assert replace(WORLD, durations=replace(PACE, save_block=2.0)).step_seconds == 10.5
    assert replace(WORLD, durations=replace(PACE, snapshot_copy=1.0), snapshot_interval=2).step_seconds == 10.5


def test_snapshots_of_hosts() -> None:
    assert WORLD.snapshot_step(170.0) == 0
    assert replace(WORLD, durations=replace(PACE, snapshot_copy=0.0), snapshot_interval=5).snapshot_step(170.0) == 45
    assert replace(WORLD, durations=replace(PACE, snapshot_copy=0.0), snapshot_interval=50).snapshot_step(170.0) == 40
    assert MOVING.snapshot_step(135.0) == 43
