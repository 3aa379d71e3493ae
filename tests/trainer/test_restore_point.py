"""Which saved step is restored, and what happens to the others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.meeting import together
from tests.trainer.tiny import UID, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Rollback, Span
from trainingjob_trainer.events import Events
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.history import Past, belongs
from trainingjob_trainer.integrity import Integrity, hash_files, list_files, write_integrity
from trainingjob_trainer.restore_point import Memory, Recalled, RestorePoint
from trainingjob_trainer.signature import State
from trainingjob_trainer.snapshot_files import Key
from trainingjob_trainer.world import Peers

DATA = "index"
STATE = "shapes"
HISTORY = (Span(generation=1, first=1, last=20), Span(generation=3, first=21))


def record(generation: int, step: int, uid: str = UID) -> Integrity:
    return Integrity(job_uid=uid, generation=generation, step=step, data=DATA, state=STATE, files={})


BELONGS: dict[str, tuple[Integrity, tuple[Span, ...], bool, bool]] = {
    "inside a closed span": (record(1, 20), HISTORY, False, True),
    "after a closed span": (record(1, 30), HISTORY, False, False),
    "inside the open span": (record(3, 40), HISTORY, False, True),
    "before the generation's span": (record(3, 20), HISTORY, False, False),
    "of a generation that was left out": (record(2, 30), HISTORY, False, False),
    "of the newest generation, not recorded yet": (record(4, 50), HISTORY, False, True),
    "of this world's own number": (record(5, 50), HISTORY, False, False),
    "the restore point of a span, of a generation left out": (record(2, 20), HISTORY, False, True),
    "of a generation that was never recorded, before the next one's span": (record(2, 16), HISTORY, False, True),
    "of the first of two newest generations, neither recorded": (
        record(3, 40),
        (Span(generation=1, first=1),),
        False,
        True,
    ),
    "of a generation before all that are recorded": (record(1, 10), (Span(generation=2, first=11),), False, True),
    "of a generation before a rollback, that a later one went behind": (
        record(2, 16),
        (Span(generation=1, first=1, last=8), Span(generation=4, first=9)),
        False,
        False,
    ),
    "no history yet": (record(1, 10), (), False, True),
    "of another job": (record(1, 10, "other"), (), False, False),
    "of another job, taken over": (record(9, 10, "other"), (), True, True),
    "of another job, taken over before, and not restored then": (record(1, 10, "other"), HISTORY, True, False),
    "of another job, at a step that was restored from memory": (
        record(7, 10, "other"),
        (Span(generation=1, first=11, tier="ram"),),
        True,
        False,
    ),
    "of another job, restored when it was taken over": (
        record(7, 10, "other"),
        (Span(generation=1, first=11),),
        True,
        True,
    ),
}


@pytest.mark.parametrize(("saved", "lineage", "takeover", "want"), BELONGS.values(), ids=BELONGS.keys())
def test_belongs(saved: Integrity, lineage: tuple[Span, ...], takeover: bool, want: bool) -> None:
    assert belongs(saved, make_world(5, 1, lineage), takeover=takeover) is want


class Shelf:
    """A lineage's folder with made-up steps, and what is said about it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "lineage-0"
        self.folder.mkdir()
        self.log = root / "events"
        self._events = self.log.open("wb", buffering=0)
        self.events = Events(self._events.fileno())

    def save(
        self,
        step: int,
        generation: int = 1,
        *,
        uid: str = UID,
        data: str = DATA,
        commit: bool = True,
        lineage: int = 0,
    ) -> Path:
        folder = self.root / f"lineage-{lineage}" / str(step)
        (folder / "array").mkdir(parents=True)
        (folder / "array/0").write_bytes(bytes([step]) * 100)
        (folder / "metadata").write_text("{}")
        if commit:
            files = hash_files(folder, list_files(folder))
            integrity = Integrity(
                job_uid=uid,
                generation=generation,
                step=step,
                data=data,
                state=STATE,
                lineage=lineage,
                files=files,
            )
            write_integrity(folder, integrity)
        return folder

    def find(
        self,
        lineage: tuple[Span, ...] = (),
        *,
        takeover: bool = False,
        peers: Peers | None = None,
        memory: Memory | None = None,
        committed: int = 0,
        rollbacks: tuple[Rollback, ...] = (),
    ) -> int | Key | None:
        world = make_world(5, 1, lineage, rollbacks=rollbacks).model_copy(update={"committed": committed})
        search = RestorePoint(self.root, world, peers or Peers(0, 1), self.events, memory, takeover=takeover)
        found = search.find(DATA, (STATE,))
        if isinstance(found, Recalled):
            return found.key
        return int(found.name) if found else None

    def damaged(self) -> dict[int, str]:
        said = [json.loads(line)["damaged"] for line in self.log.read_text().splitlines()]
        return {one["step"]: one["message"] for one in said}

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def close(self) -> None:
        self._events.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture(autouse=True)
def _closed(shelf: Shelf) -> object:
    yield
    shelf.close()


def test_an_empty_folder_is_a_start_from_scratch(shelf: Shelf) -> None:
    assert shelf.find() is None


def test_the_newest_step_of_the_history_wins(shelf: Shelf) -> None:
    for step, generation in ((10, 1), (20, 1), (30, 1), (40, 2)):
        shelf.save(step, generation)

    assert shelf.find((Span(generation=1, first=1, last=20), Span(generation=3, first=21))) == 20


def test_later_steps_and_unfinished_saves_make_way(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(20, commit=False)
    shelf.save(30, 2)
    (shelf.folder / "40.orbax-checkpoint-tmp").mkdir()

    assert shelf.find((Span(generation=1, first=1, last=10), Span(generation=3, first=11))) == 10
    assert shelf.names() == ["10"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda folder: flip(folder / "array/0"), "array/0 has changed since it was saved"),
    "a cut file": (lambda folder: (folder / "array/0").write_bytes(b"x"), "array/0 has 1 bytes instead of 100"),
    "a missing file": (lambda folder: (folder / "metadata").unlink(), "metadata is missing"),
    "a broken record": (lambda folder: (folder / "integrity.json").write_text("{"), "integrity.json cannot be read"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_step_is_reported_set_aside_and_passed_over(
    shelf: Shelf, damage: Callable[[Path], object], words: str
) -> None:
    shelf.save(10)
    damage(shelf.save(20))

    assert shelf.find() == 10
    assert words in shelf.damaged()[20]
    assert shelf.names() == ["10", "20.damaged-5"]


LOSSES: dict[str, tuple[Callable[[Path], object], str, list[str]]] = {
    "its record is gone": (
        lambda folder: (folder / "integrity.json").unlink(),
        "integrity.json is missing",
        ["10", "20.damaged-5"],
    ),
    "its folder is gone": (shutil.rmtree, "it is not there any more", ["10"]),
}


@pytest.mark.parametrize(("lose", "words", "left"), LOSSES.values(), ids=LOSSES.keys())
def test_a_step_that_was_announced_and_is_gone_is_reported_too(
    shelf: Shelf, lose: Callable[[Path], object], words: str, left: list[str]
) -> None:
    shelf.save(10)
    lose(shelf.save(20))

    found = together(2, lambda peers: shelf.find(OPEN, committed=20, peers=peers))

    assert found == [10, 10]
    assert shelf.damaged() == {20: words}
    assert len(shelf.log.read_text().splitlines()) == 2
    assert shelf.names() == left


def test_what_is_saved_where_it_was_announced_is_not_reported(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(20, commit=False)

    assert shelf.find(OPEN, committed=10) == 10
    assert shelf.damaged() == {}


def test_damage_costs_no_more_of_a_generation_that_was_never_recorded(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(16, 2)
    flip(shelf.save(20, 2) / "array/0")

    assert shelf.find((Span(generation=1, first=1, last=20), Span(generation=3, first=21))) == 16


def test_training_never_starts_from_scratch_because_of_damage(shelf: Shelf) -> None:
    flip(shelf.save(10) / "array/0")

    with pytest.raises(TrainingError, match=r"no saved step .* is whole.* \(step 10: array/0 has changed") as caught:
        shelf.find()

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, True)


def test_training_never_starts_from_scratch_when_its_checkpoints_are_gone(shelf: Shelf) -> None:
    with pytest.raises(TrainingError, match="though step 20 was restored before"):
        shelf.find(HISTORY)


def test_training_never_starts_from_scratch_when_what_was_saved_is_gone_before_it_was_ever_restored(
    shelf: Shelf,
) -> None:
    words = r"though step 20 was saved before\. Bring the folder back from a copy, or start a new job from scratch"
    with pytest.raises(TrainingError, match=words) as caught:
        shelf.find(OPEN, committed=20)

    assert (caught.value.reason, caught.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


def test_a_snapshot_saves_a_job_whose_checkpoints_are_gone(shelf: Shelf) -> None:
    assert shelf.find(OPEN, committed=20, memory=Snapshots((1, 25))) == (1, 25)


def test_other_data_refuses_to_resume(shelf: Shelf) -> None:
    shelf.save(10, data="another index")

    with pytest.raises(TrainingError, match="step 10 was trained on other rows") as caught:
        shelf.find()

    assert (caught.value.reason, caught.value.path) == (FailureReason.DATA, "spec.data.train")


def test_a_job_that_took_over_prefers_its_own_steps(shelf: Shelf) -> None:
    shelf.save(10, 1)
    shelf.save(50, 9, uid="other")

    assert shelf.find((Span(generation=1, first=6),), takeover=True) == 10


class Snapshots:
    """Snapshots of which some are damaged."""

    def __init__(self, *keys: Key, damaged: tuple[Key, ...] = ()) -> None:
        self.keys = sorted(keys)
        self.damaged = damaged

    @property
    def newest(self) -> Key | None:
        return self.keys[-1] if self.keys else None

    def past(self, key: Key) -> Past:
        return Past()

    def load(self, key: Key) -> State | None:
        if key in self.damaged:
            self.keys.remove(key)
            return None
        return ANY_STATE


ANY_STATE = State(*([np.zeros(())] * len(State._fields)))
OPEN = (Span(generation=1, first=1),)
TIERS: dict[str, tuple[Snapshots, dict[int, int], int | Key | None]] = {
    "nothing is saved": (Snapshots((1, 15)), {}, (1, 15)),
    "the snapshot is newer": (Snapshots((1, 15)), {10: 1}, (1, 15)),
    "both are of one step": (Snapshots((1, 10)), {10: 1}, (1, 10)),
    "the saved step is newer": (Snapshots((1, 15)), {10: 1, 20: 1}, 20),
    "the saved step is of a later generation": (Snapshots((1, 15)), {12: 2}, 12),
    "the snapshot is damaged, its elder still newer": (
        Snapshots((1, 15), (1, 18), damaged=((1, 18),)),
        {10: 1},
        (1, 15),
    ),
    "the snapshot is damaged": (Snapshots((1, 15), damaged=((1, 15),)), {10: 1}, 10),
    "the snapshot is damaged and nothing is saved": (Snapshots((1, 15), damaged=((1, 15),)), {}, None),
}


@pytest.mark.parametrize(("memory", "saved", "want"), TIERS.values(), ids=TIERS.keys())
def test_the_newest_of_both_tiers_is_taken(
    memory: Snapshots, saved: dict[int, int], want: int | Key | None, shelf: Shelf
) -> None:
    for step, generation in saved.items():
        shelf.save(step, generation)

    assert shelf.find(OPEN, memory=memory) == want


def test_what_was_saved_after_a_snapshot_that_is_gone_on_from_makes_way(shelf: Shelf) -> None:
    for step in (10, 20):
        shelf.save(step, 1)

    assert shelf.find((Span(generation=1, first=1, last=15),), memory=Snapshots((1, 15))) == (1, 15)
    assert shelf.names() == ["10"]


def test_a_snapshot_is_newer_than_what_another_job_saved(shelf: Shelf) -> None:
    shelf.save(50, 9, uid="other")

    assert shelf.find(takeover=True, memory=Snapshots((1, 5))) == (1, 5)


def test_a_snapshot_saves_a_job_whose_checkpoints_are_damaged(shelf: Shelf) -> None:
    flip(shelf.save(20) / "array/0")

    assert shelf.find(OPEN, memory=Snapshots((1, 15))) == (1, 15)
    assert list(shelf.damaged()) == [20]


def test_a_job_that_lived_from_snapshots_alone_may_start_from_scratch(shelf: Shelf) -> None:
    """Nothing was saved yet when its hosts were lost: no saved step is missing."""
    history = (Span(generation=1, first=1, last=4), Span(generation=2, first=5, tier="ram"))

    assert shelf.find(history) is None


def test_a_partitioned_world_cannot_save_the_step_that_a_snapshot_was_of(shelf: Shelf) -> None:
    """Generation 1 ended at 10 and still wrote 15, which generation 3 has from the memory of generation 2."""
    history = (
        Span(generation=1, first=1, last=10),
        Span(generation=2, first=11, last=15),
        Span(generation=3, first=16, tier="ram"),
    )
    shelf.save(10, 1)
    shelf.save(15, 1)

    assert shelf.find(history) == 10


@pytest.mark.parametrize("name", ["array/0", "metadata", "integrity.json"])
def test_all_processes_agree_whoever_finds_the_damage(shelf: Shelf, name: str) -> None:
    shelf.save(10)
    (shelf.save(20) / name).write_bytes(b"\x00")

    found = together(2, lambda peers: shelf.find(peers=peers))

    assert found == [10, 10]
    assert list(shelf.damaged()) == [20]
    assert len(shelf.log.read_text().splitlines()) == 2  # each tells it: who restored is not asked twice
