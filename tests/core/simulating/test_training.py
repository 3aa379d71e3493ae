"""A simulated world: what its hosts report at any time, and what of their work is saved."""

from dataclasses import replace

import pytest

from trainingjob_api.protocol import Phase
from trainingjob_operator.core.simulating.pace import Pace
from trainingjob_operator.core.simulating.training import Moment, Training

PACE = Pace({2: 10.0}, join=5.0, save=25.0, block=0.0)
WORLD = Training(generation=1, slices=(0, 1), pace=PACE, formed=100.0, restored=40, last=50, every=4, saved=36)
LEAVING = WORLD.leave(127.0)
MOVING = replace(WORLD, snapshots=5, pace=replace(PACE, copy=0.0)).leave(127.0, moves=True)
BROKEN = WORLD.lose_member(127.0)

MOMENTS: dict[str, tuple[Training, float, Moment]] = {
    "it joins": (WORLD, 104.0, Moment(Phase.RESTORING, 40, 100.0, 36)),
    "its first step": (WORLD, 114.0, Moment(Phase.TRAINING, 40, 105.0, 36)),
    "a step is done": (WORLD, 115.0, Moment(Phase.TRAINING, 41, 115.0, 36)),
    "what was due before it is being saved": (WORLD, 139.0, Moment(Phase.TRAINING, 43, 135.0, 36)),
    "what was due before it is committed": (WORLD, 140.0, Moment(Phase.TRAINING, 43, 135.0, 41)),
    "a save is under way": (WORLD, 169.0, Moment(Phase.TRAINING, 46, 165.0, 41)),
    "a save is committed": (WORLD, 170.0, Moment(Phase.TRAINING, 46, 165.0, 44)),
    "the last step is being saved": (WORLD, 210.0, Moment(Phase.SAVING, 50, 205.0, 48)),
    "all is done": (WORLD, 230.0, Moment(Phase.DONE, 50, 230.0, 50)),
    "asked to leave": (LEAVING, 134.0, Moment(Phase.TRAINING, 42, 125.0, 36)),
    "it saves at the next step": (LEAVING, 136.0, Moment(Phase.SAVING, 43, 135.0, 36)),
    "it has left": (LEAVING, 160.0, Moment(Phase.LEFT, 43, 160.0, 43)),
    "it has moved, and saved nothing": (MOVING, 135.0, Moment(Phase.LEFT, 43, 135.0, 36)),
    "it has moved, and what was saved meanwhile is": (
        replace(MOVING, asked_to_leave=142.0),
        170.0,
        Moment(Phase.LEFT, 44, 145.0, 41),
    ),
    "a member is lost": (BROKEN, 1000.0, Moment(Phase.TRAINING, 42, 125.0, 36)),
}


@pytest.mark.parametrize(("world", "now", "want"), MOMENTS.values(), ids=MOMENTS.keys())
def test_a_moment(world: Training, now: float, want: Moment) -> None:
    assert world.at(now) == want


def test_it_is_asked_to_leave_once() -> None:
    assert LEAVING.leave(150.0) == LEAVING
    assert LEAVING.leave(150.0, moves=True) == LEAVING
    assert MOVING.leave(150.0, moves=True) == MOVING


def test_who_moves_may_still_be_asked_to_save() -> None:
    assert MOVING.leave(128.0).at(1000.0) == LEAVING.at(1000.0)


def test_who_moves_with_the_last_step_is_done() -> None:
    assert WORLD.leave(204.0, moves=True).at(230.0) == Moment(Phase.DONE, 50, 230.0, 50)


def test_asked_before_it_begins_it_makes_a_step_first() -> None:
    assert WORLD.leave(101.0).at(1000.0).step == 41


def test_what_has_left_needs_no_member_any_more() -> None:
    assert LEAVING.lose_member(161.0) == LEAVING
    assert BROKEN.lose_member(140.0) == BROKEN


def test_saves_and_snapshots_take_their_share_of_the_steps() -> None:
    assert replace(WORLD, pace=replace(PACE, block=2.0)).step_seconds == 10.5
    assert replace(WORLD, pace=replace(PACE, copy=1.0), snapshots=2).step_seconds == 10.5


def test_what_its_hosts_remember() -> None:
    assert WORLD.remembered(170.0) == 0
    assert replace(WORLD, pace=replace(PACE, copy=0.0), snapshots=5).remembered(170.0) == 45
    assert replace(WORLD, pace=replace(PACE, copy=0.0), snapshots=50).remembered(170.0) == 40
    assert MOVING.remembered(135.0) == 43
