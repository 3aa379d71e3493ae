"""Which saved steps stay."""

from collections.abc import Iterable

import pytest

from tests.support.trainer.shelf import Shelf, at, list_steps
from tests.support.trainer.tiny import UID, make_world
from trainingjob_api.spec.checkpoint import Keep, KeepBest, KeepStage
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.retention import choose_deletions, delete_expired
from trainingjob_trainer.checkpoint.step_changes import quarantine_step
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import PosixStore


def keep_best(count: int) -> Keep:
    return Keep(last=1, best=KeepBest(evaluation="news", count=count))


KEEPS: dict[str, tuple[Iterable[int], Keep, int, list[int]]] = {
    "the newest few": ([2, 4, 6, 8], Keep(last=2), 0, [2, 4]),
    "fewer than kept": ([2, 4], Keep(last=3), 0, []),
    "multiples of a stage": ([2, 4, 6, 8, 10], Keep(last=1, stages=(KeepStage(every=4),)), 0, [2, 6]),
    "multiples of two stages": (
        [2, 4, 6, 8, 10, 12, 14],
        Keep(last=1, stages=(KeepStage(every=2, until=4), KeepStage(every=6))),
        0,
        [8, 10],
    ),
    "none after the end of the last stage": ([2, 4, 6, 8], Keep(last=1, stages=(KeepStage(every=2, until=4),)), 0, [6]),
    "the step that was restored": ([2, 4, 6, 8], Keep(last=1), 4, [2, 6]),
    "the best one": ({2: 3.0, 4: 1.0, 6: 2.0, 8: 5.0}, keep_best(1), 0, [2, 6]),
    "the two best ones": ({2: 3.0, 4: 1.0, 6: 2.0, 8: 5.0}, keep_best(2), 0, [2]),
    "the earlier one of two as good": ({2: 1.0, 4: 1.0, 6: 2.0}, keep_best(1), 0, [4]),
    "no best one where none was measured": ([2, 4], keep_best(1), 0, [2]),
}


@pytest.mark.parametrize(("saved", "keep", "restored", "want"), KEEPS.values(), ids=KEEPS.keys())
def test_choose_deletions(saved: Iterable[int], keep: Keep, restored: int, want: list[int]) -> None:
    losses = saved if isinstance(saved, dict) else {}
    measured = {step: {"news": losses[step], "code": -step} if step in losses else {"code": 0.0} for step in saved}

    assert choose_deletions(measured, keep, {restored}) == want


def test_a_rolled_back_step_is_deleted_once_its_successor_in_a_later_lineage_exists(shelf: Shelf) -> None:
    for step, lineage in ((4, 0), (6, 0), (10, 0), (6, 1), (8, 1)):
        shelf.save(step, 1 + lineage, lineage=lineage)

    delete_expired(
        open_store(shelf.root),
        Fence(open_store(shelf.root), make_world(2, 1)),
        Keep(last=1, stages=(KeepStage(every=2),)),
        8,
        {4},
    )

    assert [list_steps(shelf.root / f"lineage-{lineage}") for lineage in (0, 1)] == [["10", "4"], ["6", "8"]]


def test_of_a_step_that_several_worlds_saved_the_latest_stays(shelf: Shelf) -> None:
    shelf.save(4, 1)
    newest = shelf.save(4, 3)
    shelf.save(4, 2)
    shelf.save(6, 3)

    store = open_store(shelf.root)
    delete_expired(store, Fence(store, make_world(3, 1)), Keep(last=2), 6, ())

    assert shelf.names() == ["4", "6"]
    assert newest.exists()


QUARANTINED: dict[str, tuple[int, str, bool]] = {
    "before every kept step": (4, UID, False),
    "after a kept step": (7, UID, True),
    "of another job": (4, "other", True),
}


@pytest.mark.parametrize(("step", "uid", "stays"), QUARANTINED.values(), ids=QUARANTINED)
def test_a_quarantined_step_is_deleted_once_every_kept_step_is_newer(
    shelf: Shelf, step: int, uid: str, stays: bool
) -> None:
    quarantine_step(at(shelf.save(step, uid=uid)), 2, "a flipped bit")
    for number in (6, 8):
        shelf.save(number)
    store = open_store(shelf.root)

    delete_expired(store, Fence(store, make_world(2, 1)), Keep(last=2), 8, ())

    assert shelf.names() == sorted(["6", "8", *[f"{step} quarantined"] * stays])


def test_a_deletion_that_failed_is_completed_after_the_next_commit(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = shelf.root / "frozen" / shelf.save(4).name
    frozen.mkdir(parents=True)
    shelf.save(6)
    store = open_store(shelf.root)
    fence = Fence(store, make_world(2, 1))

    def refuse(*_: object) -> None:
        raise OSError("busy")

    with monkeypatch.context() as outage:
        outage.setattr(PosixStore, "delete_tree", refuse)
        for _ in range(2):
            delete_expired(store, fence, Keep(last=1), 6, ())
            assert shelf.names() == ["4 interrupted", "6"]

    delete_expired(store, fence, Keep(last=1), 6, ())
    assert shelf.names() == ["6"]
    assert not frozen.exists()


LEFT: dict[str, tuple[int, str, bool]] = {
    "a failed save of an earlier world": (1, UID, False),
    "a failed save of this world": (2, UID, False),
    "the save of a later world": (3, UID, True),
    "the save of another job": (1, "other", True),
}


@pytest.mark.parametrize(("generation", "uid", "stays"), LEFT.values(), ids=LEFT)
def test_after_a_commit_own_folders_without_a_manifest_are_deleted(
    shelf: Shelf, generation: int, uid: str, stays: bool
) -> None:
    shelf.save(6)
    shelf.save(4, generation, uid=uid, commit=False)
    store = open_store(shelf.root)

    delete_expired(store, Fence(store, make_world(2, 1)), Keep(last=1), 6, ())

    assert shelf.names() == [*["4 interrupted"] * stays, "6"]


def test_after_a_commit_the_save_of_another_replica_stays(shelf: Shelf) -> None:
    shelf.save(6, 5)
    shelf.save(8, 4, commit=False)
    store = open_store(shelf.root)
    Fence(store, make_world(4, 1), 1).claim()

    delete_expired(store, Fence(store, make_world(5, 1), 0), Keep(last=1), 6, ())

    assert shelf.names() == ["6", "8 interrupted"]


def test_a_deletion_that_is_interrupted_leaves_no_step(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shelf.save(4)
    shelf.save(6)
    store = open_store(shelf.root)

    def refuse(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr(PosixStore, "delete_tree", refuse)
    delete_expired(store, Fence(store, make_world(2, 1)), Keep(last=1), 6, ())

    assert shelf.names() == ["4 interrupted", "6"]
    assert (folder / "array/0").exists()
