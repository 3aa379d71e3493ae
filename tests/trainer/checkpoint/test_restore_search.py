"""Which saved step is restored, and what happens to the others."""

import pytest

from tests.support.trainer.shelf import HISTORY, OPEN, Shelf, Snapshots, record
from tests.support.trainer.tiny import UID, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.snapshots.lineage import is_in_history
from trainingjob_trainer.snapshots.snapshot_files import Key

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
    assert is_in_history(saved, make_world(5, 1, lineage), takeover=takeover) is want


def test_an_empty_folder_is_a_start_from_scratch(shelf: Shelf) -> None:
    assert shelf.find() is None


def test_the_newest_step_of_the_history_wins(shelf: Shelf) -> None:
    for step, generation in ((10, 1), (20, 1), (30, 1), (40, 2)):
        shelf.save(step, generation)

    assert shelf.find((Span(generation=1, first=1, last=20), Span(generation=3, first=21))) == 20


def test_later_steps_and_unfinished_saves_make_way(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(30, 2)
    for name in (
        "40.orbax-checkpoint-tmp",
        "40.saving-2",
        "50.saving-3.orbax-checkpoint-tmp",
        "60.saving-2.void",
        "70.void",
    ):
        (shelf.folder / name).mkdir()
    for step in (5, 40):
        shelf.save(step, commit=False)

    assert shelf.find((Span(generation=1, first=1, last=10), Span(generation=3, first=11))) == 10
    assert shelf.names() == ["10"]


def test_job_without_checkpoints_resumes_from_a_snapshot(shelf: Shelf) -> None:
    assert shelf.find(OPEN, committed=20, memory=Snapshots((1, 25))) == (1, 25)


def test_resume_is_rejected_with_other_data(shelf: Shelf) -> None:
    shelf.save(10, data="another index")

    with pytest.raises(TrainingError, match="step 10 was trained on other rows") as caught:
        shelf.find()

    assert (caught.value.reason, caught.value.path) == (FailureReason.DATA, "spec.data.train")


def test_a_job_that_took_over_prefers_its_own_steps(shelf: Shelf) -> None:
    shelf.save(10, 1)
    shelf.save(50, 9, uid="other")

    assert shelf.find((Span(generation=1, first=6),), takeover=True) == 10


OWNERS = '{"uid": "%s", "job": "tests/tiny", "former": %s}\n'


@pytest.mark.parametrize("former", [None, '["second", "first"]'], ids=["of an older trainer", "with former owners"])
def test_third_job_resumes_from_the_second_one(shelf: Shelf, former: str | None) -> None:
    """Generations of different jobs cannot be compared."""
    shelf.save(40, 12, uid="first")
    shelf.save(50, 12, uid="first")
    shelf.save(90, 1, uid="second")
    if former:
        (shelf.root / "OWNER").write_text(OWNERS % (UID, former))

    assert shelf.find(takeover=True) == 90
    assert shelf.names() == ["40", "50", "90"]


def test_a_late_step_of_a_job_that_lost_its_folder_does_not_count(shelf: Shelf) -> None:
    shelf.save(120, 12, uid="first")
    shelf.save(90, 1, uid="second")
    shelf.save(100, 1, uid="second")
    (shelf.root / "OWNER").write_text(OWNERS % (UID, '["second", "first"]'))

    assert shelf.find(takeover=True) == 100
    assert shelf.names() == ["100", "120 quarantined", "90"]


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


def test_steps_after_a_restored_snapshot_are_moved_aside(shelf: Shelf) -> None:
    for step in (10, 20):
        shelf.save(step, 1)

    assert shelf.find((Span(generation=1, first=1, last=15),), memory=Snapshots((1, 15))) == (1, 15)
    assert shelf.names() == ["10"]


def test_a_snapshot_is_newer_than_what_another_job_saved(shelf: Shelf) -> None:
    shelf.save(50, 9, uid="other")

    assert shelf.find(takeover=True, memory=Snapshots((1, 5))) == (1, 5)


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


@pytest.mark.parametrize("committed", [0, 10])
def test_an_interrupted_save_is_no_damage_and_makes_way(shelf: Shelf, committed: int) -> None:
    shelf.save(20, commit=False)
    for step in range(0, committed, 10):
        shelf.save(step + 10)

    assert shelf.find(OPEN if committed else (), committed=committed) == (committed or None)
    assert shelf.damaged() == {}
    assert shelf.names() == ["10"] * bool(committed)


INTERRUPTED: dict[str, tuple[int, str, bool]] = {
    "of an earlier world": (4, UID, False),
    "of a later world, which this one has not seen yet": (6, UID, True),
    "of another job": (9, "other", False),
}


@pytest.mark.parametrize(("generation", "uid", "stays"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_steps_of_a_later_world_are_not_deleted(shelf: Shelf, generation: int, uid: str, stays: bool) -> None:
    shelf.save(10)
    shelf.save(20, generation, uid=uid, commit=False)

    assert shelf.find(OPEN) == 10
    assert shelf.names() == ["10", *["20 interrupted"] * stays]


def test_an_interrupted_save_of_another_job_is_not_the_announced_step(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(20, 9, uid="other", commit=False)

    assert shelf.find(OPEN, committed=20) == 10
    assert (shelf.damaged(), shelf.names()) == ({20: "it is not there any more"}, ["10"])


def test_an_interrupted_save_of_the_announced_step_is_its_loss_only_where_the_step_is_gone(shelf: Shelf) -> None:
    shelf.save(10)
    shelf.save(20, number=1, commit=False)
    shelf.save(20, number=2)

    assert shelf.find(OPEN, committed=20) == 20
    assert (shelf.damaged(), shelf.names()) == ({}, ["10", "20"])
