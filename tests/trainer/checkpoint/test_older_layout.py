"""Steps below names that older trainers gave them, when a commit was a rename: `lineage-<n>/<step>`."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.support.trainer.shelf import OPEN, Shelf, at, flip, list_steps, read_record, step_path
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_agent.checkpoint_layout import WRITER_FILE
from trainingjob_api.spec.checkpoint import InitializeFrom, Keep
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.initialize import _list_candidates
from trainingjob_trainer.checkpoint.manifest import hash_files, list_files, write_integrity
from trainingjob_trainer.checkpoint.retention import delete_expired
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import PosixStore


@pytest.fixture
def events(tmp_path: Path) -> Iterator[AgentEvents]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield AgentEvents(file.fileno())


def open_world(root: Path, events: AgentEvents, generation: int, *lineage: Span) -> Checkpoints:
    config = make_config(make_spec(root, root, checkpoint__keep__last=2))
    return Checkpoints(root, config, make_world(generation, 1, lineage), ProcessGroup(0, 1), "index", events)


def save_as_before(root: Path, events: AgentEvents, *steps: int) -> None:
    """Save steps, and give them the names and files that they had before a step had a writer."""
    world = open_world(root, events, 1)
    for step in steps:
        world.save(step, make_state((4, 2), step))
        world.wait()
        folder = step_path(root, step).rename(root / f"lineage-0/{step}")
        (folder / WRITER_FILE).unlink()
        files = hash_files(at(folder), list_files(at(folder)))
        write_integrity(at(folder), read_record(folder).model_copy(update={"files": files}))


def test_an_older_step_is_restored_retained_and_deleted(events: AgentEvents, tmp_path: Path) -> None:
    save_as_before(tmp_path, events, 2, 4)
    world = open_world(tmp_path, events, 2, Span(generation=1, first=1))

    restored = world.restore(describe(make_state((1, 2))))

    assert restored is not None
    assert (world.newest, world.inventory.is_saved) == (4, True)
    for seen, want in zip(*map(jax.tree.leaves, (restored, make_state((4, 2), 4))), strict=True):
        assert np.array_equal(seen, want)
    world.save(6, make_state((1, 2), 6))
    world.wait()
    assert sorted(path.name.partition(".")[0] for path in (tmp_path / "lineage-0").iterdir()) == ["4", "6"]
    third = open_world(tmp_path, events, 3, Span(generation=1, first=1, last=4), Span(generation=2, first=5))
    third.restore(describe(make_state((1, 2))))
    for step in (8, 10):
        third.save(step, make_state((1, 2), step))
        third.wait()
    assert list_steps(tmp_path / "lineage-0") == ["10", "6", "8"]


def test_an_older_step_makes_way_for_the_same_step_of_a_later_world(shelf: Shelf) -> None:
    shelf.save(10, 1, is_older=True)
    shelf.save(20, 1, is_older=True)

    assert shelf.find((Span(generation=1, first=1, last=10),)) == 10
    assert shelf.names() == ["10"]
    newest = shelf.save(10, 5)
    store = open_store(shelf.root)
    delete_expired(store, Fence(store, make_world(5, 1)), Keep(last=2), 10, ())
    assert list(shelf.folder.iterdir()) == [newest]


def test_an_older_step_that_is_damaged_is_quarantined_and_later_deleted(shelf: Shelf) -> None:
    flip(shelf.save(20, is_older=True) / "array/0")
    shelf.save(10, is_older=True)

    assert shelf.find(OPEN, committed=20) == 10
    assert shelf.damaged() == {20: "array/0 has changed since it was saved"}
    assert shelf.names() == ["10", "20 quarantined"]
    shelf.save(30, 5)
    store = open_store(shelf.root)
    delete_expired(store, Fence(store, make_world(5, 1)), Keep(last=1), 30, ())
    assert shelf.names() == ["30"]


def test_an_older_step_that_is_half_deleted_is_no_damage_and_its_deletion_is_finished(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.save(10, is_older=True)
    shelf.save(20)
    shelf.save(30)
    store = open_store(shelf.root)

    def end(retained: int, step: int) -> None:
        delete_expired(store, Fence(store, make_world(5, 1)), Keep(last=retained), step, ())

    def refuse(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(PosixStore, "delete_tree", refuse)
        end(2, 30)
    assert not (shelf.folder / "10/integrity.json").exists()
    assert shelf.find(OPEN, committed=30) == 30
    assert shelf.damaged() == {}
    assert shelf.names() == ["10 quarantined", "20", "30"]

    end(2, 30)
    assert shelf.names() == ["20", "30"]


def test_parameters_are_taken_from_an_older_step(shelf: Shelf) -> None:
    shelf.save(10, is_older=True)
    shelf.save(8, uid=UID)

    candidates = _list_candidates(InitializeFrom(uri=str(shelf.root)))

    assert candidates[0].name == "lineage-0/10"
