"""A superseded world that keeps training without contact, on the storage of its successor."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.shelf import at, read_record, step_path
from tests.support.trainer.stores import Stores, World
from tests.support.trainer.tiny import UID, make_world
from tests.trainer.checkpoint.test_checkpoints import make_state
from trainingjob_agent.checkpoint_layout import hash_job
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint import commit, owner
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import write_integrity
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.failure_records import failure_record
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import PosixStore

UNTIL_20 = Span(generation=1, first=1, last=20)


@pytest.fixture
def first(stores: Stores) -> World:
    """Return the superseded world; its newest reported step is 20."""
    world = stores.open()
    world.restore()
    return world.save(20)


@pytest.fixture
def second(first: World, stores: Stores) -> World:
    """Return its successor, which has resumed from there and saved nothing yet."""
    world = stores.open(2, UNTIL_20)
    world.restore()
    return world


def saved(stores: Stores) -> dict[int, int]:
    """Return the generation of each step that is saved."""
    records = [read_record(path.parent) for path in stores.fast.glob("lineage-0/*/integrity.json")]
    assert len({record.step for record in records}) == len(records)
    return {record.step: record.generation for record in records}


def test_it_saves_nothing_and_deletes_nothing_before_its_successor_has_saved(
    first: World, second: World, stores: Stores
) -> None:
    with pytest.raises(TrainingError, match="generation 2 of the job is there, and this is generation 1") as caught:
        first.save(30)

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, False)
    assert saved(stores) == {20: 1}
    second.save(30)
    assert saved(stores) == {30: 2, 20: 1}


class Halt:
    """Stops the first world at a stage of its save, as a stopped machine would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._is_first = True
        real = getattr(commit, stage)

        def stop(*arguments: Any, **named: Any) -> Any:
            if self._is_first:
                self._is_first = False
                self.reached.set()
                assert self.go_on.wait(ENDLESS_SECONDS)
            return real(*arguments, **named)

        monkeypatch.setattr(commit, stage, stop)


@pytest.mark.parametrize("stage", ["list_files", "hash_files", "write_integrity", "commit_step"])
def test_a_save_under_way_never_mixes_with_its_successors(
    stage: str, first: World, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    halt = Halt(monkeypatch, stage)
    first.checkpoints.save(30, make_state((1, 1), 1))
    assert halt.reached.wait(ENDLESS_SECONDS)
    second = stores.open(2, UNTIL_20)
    second.restore()
    second.save(30)
    folder = step_path(stores.fast, 30)
    content = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    halt.go_on.set()
    with pytest.raises(TrainingError, match="generation 2"):
        first.save(40)

    assert saved(stores) == {20: 1, 30: 2}
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == content
    third = stores.open(3, UNTIL_20, Span(generation=2, first=21))
    restored = third.restore()
    assert restored is not None
    assert int(restored.step) == 30


def test_last_commit_of_a_superseded_world_is_moved_aside(first: World, second: World, stores: Stores) -> None:
    """It checked its fence, was stopped, and wrote its manifest after its successor had cleaned up."""
    late = step_path(stores.fast, 20).with_name(f"30.g1.s2.{hash_job(UID)}")
    shutil.copytree(step_path(stores.fast, 20), late)
    write_integrity(at(late), read_record(late).model_copy(update={"step": 30}))

    second.save(30)

    assert saved(stores) == {20: 1, 30: 2}
    assert stores.failing == []


def test_what_it_committed_at_the_last_moment_takes_no_place_of_a_step_to_keep(first: World, stores: Stores) -> None:
    """Its step is in no history, so the older one is the last resort if the newest step is damaged."""
    second = stores.open(2, UNTIL_20, last=2)
    second.restore()
    late = step_path(stores.fast, 20).with_name(f"25.g1.s2.{hash_job(UID)}")
    shutil.copytree(step_path(stores.fast, 20), late)
    write_integrity(at(late), read_record(late).model_copy(update={"step": 25}))

    second.save(30)

    assert saved(stores) == {20: 1, 30: 2}


def test_no_copy_of_it_takes_the_place_of_its_successors(first: World, stores: Stores) -> None:
    second = stores.open(2, UNTIL_20)
    second.restore()
    second.save(30)
    copies = first.checkpoints._upkeep.backup
    source = at(step_path(stores.fast, 20))
    record = read_record(step_path(stores.fast, 20))
    assert copies

    copies.wait_for_last(source, record.model_copy(update={"step": 30}), 0)

    assert "generation 2 of the job is there" in stores.failed[-1][1]
    assert read_record(step_path(stores.slow, 30)).generation == 2


def test_a_world_that_begins_late_learns_that_another_is_there(second: World, stores: Stores) -> None:
    with pytest.raises(TrainingError, match="its status was lost; the next world has a later generation") as caught:
        stores.open(1).restore()

    assert failure_record(caught.value, step=None).newest_generation == 2
    assert saved(stores) == {20: 1}


def test_first_job_ends_after_a_takeover_of_its_folder(first: World, stores: Stores) -> None:
    owner.claim(open_store(stores.fast), stores.config(uid="other", takeover=True))

    with pytest.raises(TrainingError, match="another job has taken it over"):
        first.save(30)


OWNERS: dict[str, Callable[[Path], object]] = {
    "nobody signed": lambda root: None,
    "it is just being signed": lambda root: (root / "OWNER").touch(),
    "it makes no sense": lambda root: (root / "OWNER").write_text("[]\n"),
    "it is this job's": lambda root: (root / "OWNER").write_text(json.dumps({"uid": UID, "job": "a/b"})),
    "another job's worlds were there": lambda root: (root / "WORLD-9-other").touch(),
    "a file that is none of ours": lambda root: (root / "WORLD-x").touch(),
    "an earlier world": lambda root: (root / f"WORLD-1-{UID}").touch(),
}


@pytest.mark.parametrize("prepare", OWNERS.values(), ids=OWNERS.keys())
def test_owner_of_the_folder_continues(prepare: Callable[[Path], object], tmp_path: Path) -> None:
    prepare(tmp_path)
    fence = Fence(open_store(tmp_path), make_world(2, 1))

    fence.claim()
    fence.claim()
    fence.check()

    assert [path.name for path in tmp_path.glob(f"WORLD-*-{UID}")] == [f"WORLD-2-{UID}"]


def test_of_two_worlds_that_come_at_once_the_later_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PosixStore.create_exclusive

    def create(store: PosixStore, name: str, content: bytes) -> None:
        real(store, name, content)
        if name == f"WORLD-2-{UID}":
            (tmp_path / f"WORLD-3-{UID}").touch()

    monkeypatch.setattr(PosixStore, "create_exclusive", create)

    with pytest.raises(TrainingError, match="generation 3 of the job is there"):
        Fence(open_store(tmp_path), make_world(2, 1)).claim()
