"""Frozen tensors are written once, each step that refers to them is complete, and none of them is deleted too early."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.support.trainer.shelf import OPEN, at, flip, list_steps, read_record, step_path
from tests.support.trainer.stores import FIRST, Stores, largest
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_agent.checkpoint_layout import FROZEN_FOLDER, MANIFEST_FILE, hash_job
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.checkpoint.frozen_deletion import delete_unused_frozen
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders
from trainingjob_trainer.checkpoint.items import find_restorable
from trainingjob_trainer.checkpoint.manifest import read_integrity
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.state import FROZEN_LAYOUT, STATE_LAYOUT, State

SECOND = (Span(generation=1, first=1, last=2), Span(generation=2, first=3))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path, frozen=True)
    yield stores
    stores.close()


class Memory:
    """A snapshot of step 2."""

    newest: Key = (1, 2)

    def load(self, key: Key) -> State:
        return make_state((1, 1), key[1], frozen=True)

    def past(self, key: Key) -> Provenance:
        return Provenance()


def frozen_folders(root: Path) -> list[str]:
    return sorted(path.name.removesuffix(f".{hash_job_of(root)}") for path in (root / FROZEN_FOLDER).glob("*"))


def hash_job_of(root: Path) -> str:
    return hash_job(next(iter(read_record(path.parent).job_uid for path in root.glob(f"*/*/{MANIFEST_FILE}"))))


def check_state(restored: State | None, step: int) -> None:
    assert restored is not None
    for seen, want in zip(*map(jax.tree.leaves, (restored, make_state((1, 1), step, frozen=True))), strict=True):
        assert np.array_equal(seen, want)


def test_saves_after_the_first_hold_what_changes_alone(stores: Stores) -> None:
    stores.open(last=2).save(2, 4)

    for root in (stores.fast, stores.slow):
        assert frozen_folders(root) == ["2.g1.s1"]
        for step in (2, 4):
            folder = step_path(root, step)
            assert SavedParams(str(folder)).shape("embedding") is None
            assert SavedParams(*find_array_folders(at(folder))[:2]).shape("embedding") == (64, 64)
            assert read_record(folder).layout == FROZEN_LAYOUT
    check_state(stores.open(2, FIRST).restore(), 4)
    assert (stores.failed, stores.failing, stores.damaged) == ([], [], [])


@pytest.mark.parametrize("memory", [None, Memory()], ids=["checkpoint", "snapshot"])
def test_a_later_world_refers_to_the_same_frozen_tensors(memory: Memory | None, stores: Stores) -> None:
    stores.open().save(2)
    world = stores.open(2, FIRST)
    check_state(world.restore(memory), 2)

    world.save(4)

    assert frozen_folders(stores.fast) == ["2.g1.s1"]
    check_state(stores.open(3, *SECOND).restore(), 4)
    assert stores.failing == []


def test_damaged_frozen_tensors_are_written_again_by_a_world_that_resumes_from_memory(stores: Stores) -> None:
    stores.open().save(2)
    flip(largest(stores.fast / FROZEN_FOLDER))
    world = stores.open(2, FIRST)
    world.restore(Memory())

    world.save(4)
    ((step, message),) = stores.failing
    world.save(6)

    assert step == 4
    assert "has changed since it was saved in" in message
    assert "the next save writes them again" in message
    assert frozen_folders(stores.fast) == ["6.g2.s2"], "no step refers to the damaged one any more"
    check_state(stores.open(3, *SECOND).restore(), 6)


DAMAGES: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "bit": (lambda root: flip(largest(root / FROZEN_FOLDER)), "has changed since it was saved in {}/frozen/2.g1.s1"),
    "file": (lambda root: largest(root / FROZEN_FOLDER).unlink(), "is missing in {}/frozen/2.g1.s1"),
    "manifest": (
        lambda root: next(root.glob(f"{FROZEN_FOLDER}/*/{MANIFEST_FILE}")).unlink(),
        f"{MANIFEST_FILE} is missing in {{}}/frozen/2.g1.s1",
    ),
    "other manifest": (
        lambda root: next(root.glob(f"{FROZEN_FOLDER}/*/{MANIFEST_FILE}")).write_text("{}"),
        f"{MANIFEST_FILE} has 2 bytes instead of",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_step_without_intact_frozen_tensors_is_damaged(
    damage: Callable[[Path], object], message: str, stores: Stores
) -> None:
    stores.open().save(2)
    damage(stores.fast)

    check_state(stores.open(2, FIRST).restore(), 2)
    assert message.format(stores.fast) in stores.damaged[0].message
    assert "restore that folder from a copy" in stores.damaged[0].message

    damage(stores.slow)
    with pytest.raises(TrainingError, match="is intact, so training cannot resume"):
        stores.open(3, FIRST).restore()


def test_frozen_tensors_are_deleted_after_the_last_step_that_refers_to_them(stores: Stores) -> None:
    stores.open(last=2).save(2)
    second = stores.open(2, FIRST, last=2)
    second.checkpoints.restore(describe(make_state((1, 1), frozen=True)))
    second.checkpoints._committer.reuse_frozen(None, is_verified=True)

    second.save(4)
    assert frozen_folders(stores.fast) == ["2.g1.s1", "4.g2.s1"]
    third = stores.open(3, *SECOND, last=2)
    third.restore()
    third.save(6, 8)

    assert list_steps(stores.fast / "lineage-0") == ["4", "6", "8"]
    assert frozen_folders(stores.fast) == ["4.g2.s1"]
    assert frozen_folders(stores.slow) == ["4.g2.s1"]


@pytest.mark.parametrize("damage", ["quarantined", "unreadable"])
def test_a_step_that_may_refer_to_frozen_tensors_keeps_them(damage: str, stores: Stores) -> None:
    stores.open().save(2)
    folder = step_path(stores.fast, 2)
    fence = stores.open(2, FIRST).checkpoints._fence
    if damage == "quarantined":
        folder.with_name(f"{folder.name}.quarantined").write_text("{}")
    else:
        (folder / MANIFEST_FILE).write_text("{")

    delete_unused_frozen(at(folder).store, fence)
    assert len(list((stores.fast / FROZEN_FOLDER).iterdir())) == 1

    (folder / MANIFEST_FILE).unlink()
    delete_unused_frozen(at(folder).store, stores.open(1).checkpoints._fence)
    assert len(list((stores.fast / FROZEN_FOLDER).iterdir())) == 1, "the next step of the same world may refer to them"
    delete_unused_frozen(at(folder).store, fence)
    assert list((stores.fast / FROZEN_FOLDER).iterdir()) == []


def test_a_takeover_refers_to_the_frozen_tensors_of_the_other_job(stores: Stores) -> None:
    stores.open().save(2)
    world = stores.open(1, uid="other", takeover=True)
    check_state(world.restore(), 2)

    world.save(4)

    (folder,) = (stores.fast / FROZEN_FOLDER).iterdir()
    assert folder.name.startswith("2.g1.s1")


def test_an_older_trainer_rejects_a_step_that_refers_to_frozen_tensors(stores: Stores) -> None:
    stores.open().save(2)
    record = read_record(step_path(stores.fast, 2))
    state = describe(make_state((1, 1), frozen=True))

    assert record.layout not in (None, STATE_LAYOUT)
    assert find_restorable(state, record) is not None
    assert find_restorable(state, record.model_copy(update={"layout": STATE_LAYOUT})) is None
    assert find_restorable(state, record.model_copy(update={"frozen": None})) is None


@pytest.mark.parametrize("name", ["lineage-0/2.g1.s1.0d4cf5e1", "frozen/../x", "frozen/2", "frozen"])
def test_a_reference_to_another_kind_of_folder_is_damage(name: str, stores: Stores) -> None:
    stores.open().save(2)
    folder = step_path(stores.fast, 2)
    record = read_record(folder)
    assert record.frozen
    (folder / MANIFEST_FILE).write_bytes(
        (folder / MANIFEST_FILE).read_bytes().replace(record.frozen.folder.encode(), name.encode())
    )

    with pytest.raises(ValueError, match="is no folder of frozen tensors"):
        read_integrity(at(folder))


def test_an_interrupted_save_of_frozen_tensors_is_deleted_by_the_next_world(stores: Stores) -> None:
    stores.open().save(2)
    left = stores.fast / FROZEN_FOLDER / "4.g1.s2.0d4cf5e1"
    left.mkdir()
    (left / "writer.json").write_text("{}")

    stores.open(2, *OPEN).restore()

    assert frozen_folders(stores.fast) == ["2.g1.s1"]
