"""The saved step that is restored after a rollback, and the fate of the others."""

import pytest

from tests.support.trainer.shelf import Shelf, flip, record
from tests.support.trainer.tiny import make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Rollback, Span
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.snapshots.lineage import is_in_history

BACK = (Rollback(lineage=1, generation=2, step=37, parent=20),)
AGAIN = (*BACK, Rollback(lineage=2, generation=4, step=29, parent=20))
OPEN_SPANS = (Span(generation=1, first=1, last=10), Span(generation=2, first=11))
ROLLED_BACK: dict[str, tuple[Integrity, tuple[Span, ...], tuple[Rollback, ...], bool]] = {
    "of the world that went bad, before the parent": (record(2, 15), OPEN_SPANS, BACK, True),
    "the parent": (record(2, 20), OPEN_SPANS, BACK, True),
    "of the world that went bad, after the parent": (record(2, 30), OPEN_SPANS, BACK, False),
    "of a world before it that saved on": (record(1, 30), (Span(generation=1, first=1),), BACK, False),
    "of a world after the rollback, not recorded yet": (record(3, 30), OPEN_SPANS, BACK, True),
    "of a world after the rollback": (record(3, 30), (*OPEN_SPANS, Span(generation=3, first=21)), BACK, True),
    "of a world between two rollbacks, after the later one's parent": (record(3, 22), OPEN_SPANS, AGAIN, False),
    "of a world between two rollbacks, before it": (record(3, 20), OPEN_SPANS, AGAIN, True),
}


@pytest.mark.parametrize(("saved", "lineage", "rollbacks", "want"), ROLLED_BACK.values(), ids=ROLLED_BACK.keys())
def test_steps_voided_by_a_rollback_are_outside_the_lineage(
    saved: Integrity, lineage: tuple[Span, ...], rollbacks: tuple[Rollback, ...], want: bool
) -> None:
    assert is_in_history(saved, make_world(5, 1, lineage, rollbacks=rollbacks), takeover=False) is want


def test_rollback_resumes_from_its_parent_and_later_steps_are_moved_aside(shelf: Shelf) -> None:
    for step, generation in ((10, 1), (20, 2), (30, 2)):
        shelf.save(step, generation)

    assert shelf.find(OPEN_SPANS, rollbacks=BACK) == 20
    assert shelf.names() == ["10", "20"]


def test_the_newest_step_is_that_of_the_newest_lineage(shelf: Shelf) -> None:
    shelf.save(20, 2)
    shelf.save(30, 3, lineage=1)
    history = (*OPEN_SPANS, Span(generation=3, first=21))

    assert shelf.find(history, rollbacks=BACK) == 30


def test_late_saves_of_a_partitioned_world_are_never_restored(shelf: Shelf) -> None:
    shelf.save(20, 2)
    shelf.save(30, 3, lineage=1)
    shelf.save(40, 2)
    history = (*OPEN_SPANS, Span(generation=3, first=21))

    assert shelf.find(history, rollbacks=BACK) == 30
    assert shelf.names() == ["20"]


def test_a_damaged_parent_is_passed_over_for_an_earlier_step(shelf: Shelf) -> None:
    shelf.save(10)
    flip(shelf.save(20, 2) / "array/0")

    assert shelf.find(OPEN_SPANS, rollbacks=BACK) == 10


def test_a_rollback_never_starts_from_scratch_because_its_parent_is_gone(shelf: Shelf) -> None:
    with pytest.raises(TrainingError, match="though step 20 was saved before"):
        shelf.find((Span(generation=2, first=1),), rollbacks=BACK)


def test_a_rollback_before_the_first_save_starts_from_scratch(shelf: Shelf) -> None:
    shelf.save(10, 2)

    assert shelf.find((Span(generation=2, first=1),), rollbacks=(BACK[0].model_copy(update={"parent": 0}),)) is None
    assert shelf.names() == []


def test_world_without_the_rollback_rejects_later_steps(shelf: Shelf) -> None:
    shelf.save(20, 2)
    shelf.save(30, 3, lineage=1)

    with pytest.raises(TrainingError, match=r"step 30 belongs to lineage 1, which this world does not know") as caught:
        shelf.find((*OPEN_SPANS, Span(generation=3, first=21)))

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, True)


def test_another_job_may_take_over_a_folder_with_lineages(shelf: Shelf) -> None:
    shelf.save(20, 2, uid="other")
    shelf.save(30, 3, uid="other", lineage=1)

    assert shelf.find(takeover=True) == 30
