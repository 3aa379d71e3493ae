"""Overdue saves of worlds that resume from snapshots before a due save was written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trainer.meeting import together
from tests.support.trainer.shelf import OPEN, Snapshots
from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup

EVERY = 20
CASES: dict[str, tuple[list[int], int, list[int]]] = {
    "nothing was saved, and it is high time": ([], 34, [35, 40]),
    "nothing was saved, and it is not time yet": ([], 12, [20, 40]),
    "the newest multiple is saved": ([20], 34, [40]),
    "a save was left out": ([20], 45, [46, 60]),
    "it left with a step that is no multiple": ([34], 34, [40]),
    "a step was saved by time": ([28], 34, [40]),
}


@pytest.fixture
def events(tmp_path: Path) -> Iterator[AgentEvents]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield AgentEvents(file.fileno())


@pytest.mark.parametrize(("saved", "held", "want"), CASES.values(), ids=CASES.keys())
def test_overdue_save_is_written_at_once(
    saved: list[int], held: int, want: list[int], events: AgentEvents, tmp_path: Path
) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, checkpoint__save__everySteps=EVERY))
    first = Checkpoints(tmp_path, config, make_world(1, 1), ProcessGroup(0, 1), "index", events)
    for step in saved:
        first.save(step, make_state((1, 1), step))
        first.wait()
    second = Checkpoints(tmp_path, config, make_world(2, 1, OPEN), ProcessGroup(0, 1), "index", events)
    second.restore(describe(make_state((1, 1))), Snapshots((1, held)))

    due = []
    for step in range(held + 1, max(want) + 1):
        if second.is_due(step):
            due.append(step)
            second.save(step, make_state((1, 1), step))
            second.wait()

    assert due == want


@pytest.mark.parametrize(("probation", "want"), [((), [40]), ((0,), [37, 40])])
def test_world_with_a_repaired_node_saves_sooner_once(
    probation: tuple[int, ...], want: list[int], events: AgentEvents, tmp_path: Path
) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, checkpoint__save__everySteps=EVERY))
    first = Checkpoints(tmp_path, config, make_world(1, 1), ProcessGroup(0, 1), "index", events)
    first.save(32, make_state((1, 1), 32))
    first.wait()
    world = make_world(2, 1, OPEN).model_copy(update={"probation": probation})
    second = Checkpoints(tmp_path, config, world, ProcessGroup(0, 1), "index", events)
    second.restore(describe(make_state((1, 1))))

    due = []
    for step in range(33, 41):
        if second.is_due(step):
            due.append(step)
            second.save(step, make_state((1, 1), step))
            second.wait()

    assert due == want


def test_all_processes_save_after_the_same_step(events: AgentEvents, tmp_path: Path) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, checkpoint__save__everySteps=EVERY))

    def act(peers: ProcessGroup) -> list[int]:
        world = make_world(2, 1, OPEN)
        checkpoints = Checkpoints(tmp_path, config, world, peers, "index", events)
        checkpoints.restore(describe(make_state((1, 1))), Snapshots((1, 34)))
        return [step for step in range(35, 38) if checkpoints.is_due(step)]

    assert together(2, act) == [[35, 36, 37]] * 2
