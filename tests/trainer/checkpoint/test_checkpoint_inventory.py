"""The saved steps that a world records, up to the one that it resumes from."""

from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.trainer.meeting import together
from tests.support.trainer.shelf import OPEN, Shelf, Snapshots, record
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_api.spec.checkpoint import KeepBest
from trainingjob_trainer.checkpoint import saved_steps
from trainingjob_trainer.checkpoint.checkpoint_inventory import CheckpointInventory
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.runtime.process_group import ProcessGroup

BEST = KeepBest(evaluation="news", count=2)


def saved(step: int, generation: int = 1, uid: str = UID, **evaluations: float) -> Integrity:
    return record(generation, step, uid).model_copy(update={"evaluations": evaluations})


TAKEN: dict[str, tuple[list[Integrity], CheckpointInventory]] = {
    "nothing": ([], CheckpointInventory()),
    "the step itself": ([saved(10), saved(20)], CheckpointInventory(newest=20, measured={})),
    "with what was measured": (
        [saved(20, news=2.0, code=3.0)],
        CheckpointInventory(newest=20, measured={"news": 2.0, "code": 3.0}, losses={20: 2.0}),
    ),
    "one that is in memory alone": ([saved(10, news=2.0)], CheckpointInventory(newest=10, losses={10: 2.0})),
    "one that another world saved under its number": ([saved(20, 2)], CheckpointInventory(newest=20)),
    "one that another job saved under its number": ([saved(20, uid="other")], CheckpointInventory(newest=20)),
    "later ones, which are void": ([saved(10), saved(30, news=1.0)], CheckpointInventory(newest=10)),
}


@pytest.mark.parametrize(("records", "want"), TAKEN.values(), ids=TAKEN.keys())
def test_take(records: list[Integrity], want: CheckpointInventory) -> None:
    assert CheckpointInventory.from_manifests(records, (UID, 1, 20), BEST) == want


def test_losses_are_omitted_unless_best_steps_are_kept() -> None:
    assert CheckpointInventory.from_manifests([saved(20, news=2.0)], (UID, 1, 20), None).losses == {}


def test_all_processes_receive_the_inventory_of_the_first() -> None:
    found = CheckpointInventory(newest=20, measured={"news": 2.0}, losses={20: 2.0})

    assert together(2, lambda peers: (CheckpointInventory() if peers.process else found).broadcast(peers)) == [
        found,
        found,
    ]


@pytest.mark.parametrize("memory", [None, Snapshots((1, 6))], ids=["from storage", "from memory"])
def test_the_storage_is_looked_through_once(memory: Snapshots | None, shelf: Shelf, tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        tmp_path,
        evaluation=[{"name": "news", "path": "/held-out", "everySteps": 2}],
        checkpoint__keep={"best": {"evaluation": "news"}},
    )
    config = make_config(spec)
    first = Checkpoints(shelf.root, config, make_world(1, 1), ProcessGroup(0, 1), "index", shelf.events)
    for step in (2, 4):
        first.save(step, make_state((1, 1), step), {"news": 2.0})
    first.wait()
    second = Checkpoints(shelf.root, config, make_world(2, 1, OPEN), ProcessGroup(0, 1), "index", shelf.events)

    with patch.object(saved_steps, "read_integrity", wraps=saved_steps.read_integrity) as look:
        second.restore(describe(make_state((1, 1))), memory)

    assert [call.args[0].step for call in look.call_args_list] == [2, 4]
    measured = None if memory else {"news": 2.0}
    assert second.inventory == CheckpointInventory(newest=4, measured=measured, losses={2: 2.0, 4: 2.0})
