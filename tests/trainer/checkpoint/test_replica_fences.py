"""Worlds of several slices that save to one folder at the same time, because each is a replica of the job."""

from pathlib import Path

import pytest

from tests.support.trainer.shelf import list_steps, step_path
from tests.support.trainer.stores import Stores
from tests.support.trainer.tiny import UID, make_world
from trainingjob_agent.checkpoint_layout import MANIFEST_FILE, hash_job
from trainingjob_api.world import Rollback
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.saved_steps import delete_later_steps
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store


def claim(folder: Path, generation: int, slice_number: int | None) -> Fence:
    fence = Fence(open_store(folder), make_world(generation, 1), slice_number)
    fence.claim()
    return fence


OTHERS: dict[str, tuple[int, int | None, str]] = {
    "a later world of another slice": (3, 1, ""),
    "an earlier world of the same slice": (1, 0, ""),
    "an earlier world of the whole job": (1, None, ""),
    "a later world of the same slice": (3, 0, "generation 3 of slice 0 is there, and this is generation 2"),
    "a later world of the whole job": (3, None, "generation 3 of the job is there, and this is generation 2"),
    "another slice with the same generation": (2, 1, "another world was generation 2 of the job"),
}


@pytest.mark.parametrize(("generation", "number", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_a_replica_ends_for_a_world_of_its_slice_and_of_the_whole_job(
    generation: int, number: int | None, message: str, tmp_path: Path
) -> None:
    fence = claim(tmp_path, 2, 0)
    scope = "" if number is None else f"slice-{number}-"
    (tmp_path / f"WORLD-{generation}-{scope}{UID}").touch()

    if message:
        with pytest.raises(TrainingError, match=message) as caught:
            fence.check()
        assert caught.value.newest_generation == generation
    else:
        fence.check()


def test_a_whole_job_fences_off_all_replicas_and_a_replica_fences_off_the_whole_job(tmp_path: Path) -> None:
    whole = claim(tmp_path, 1, None)
    replicas = [claim(tmp_path, generation, number) for generation, number in ((2, 0), (3, 1), (5, 0))]

    for fence, message in zip(
        (whole, replicas[0]), ("generation 5 of slice 0", "generation 5 of slice 0"), strict=True
    ):
        with pytest.raises(TrainingError, match=message):
            fence.check()
    for fence in replicas[1:]:
        fence.check()
    assert {path.name for path in tmp_path.glob("WORLD-*")} == {f"WORLD-3-slice-1-{UID}", f"WORLD-5-slice-0-{UID}"}
    assert (replicas[1].find_running(), replicas[2].find_running()) == ({5}, {3})
    next_whole = claim(tmp_path, 6, None)
    assert next_whole.find_running() == set()
    assert [path.name for path in tmp_path.glob("WORLD-*")] == [f"WORLD-6-{UID}"]


@pytest.mark.thorough
def test_a_replica_that_joins_keeps_what_the_others_save_and_resumes_from_the_newest_step(stores: Stores) -> None:
    second = stores.open(2, slice_number=1, last=2)
    assert second.restore() is None
    second.save(10)
    first = stores.open(1, slice_number=0, last=2)
    assert first.restore() is not None, "a replica may find a step of a later generation"
    first.save(20)
    folder = stores.fast / "lineage-0"
    being_saved = folder / f"30.g1.s9.{hash_job(UID)}"
    left_over = folder / f"30.g2.s9.{hash_job(UID)}"  # of the world that the next one replaces
    for path in (being_saved, left_over):
        path.mkdir()

    third = stores.open(3, slice_number=1, last=2)
    restored = third.restore()

    assert restored is not None
    assert int(restored.step) == 20, "an earlier generation saved the newest step"
    assert (being_saved.exists(), left_over.exists()) == (True, False)
    third.save(20, 30)  # the first is a step that another replica has saved too
    assert being_saved.exists(), "another replica may be writing it"
    first.save(40)
    assert not being_saved.exists(), "that replica has saved since"
    third.save(50)
    assert list_steps(folder) == ["40", "50"]
    delete_later_steps(open_store(stores.fast), 40, Fence(open_store(stores.fast), make_world(4, 1), 1))
    assert list_steps(folder) == ["40", "50"], "a step that was saved during the restore"
    with pytest.raises(TrainingError, match="generation 3 of slice 1 is there"):
        second.save(50)


@pytest.mark.thorough
def test_after_a_rollback_the_later_steps_of_all_replicas_are_void(stores: Stores) -> None:
    for generation, number, step in ((1, 0, 10), (2, 1, 20)):
        world = stores.open(generation, slice_number=number, last=9)
        world.restore()
        world.save(step)
    rollback = Rollback(lineage=1, generation=2, step=25, parent=10)

    for generation, number in ((3, 1), (4, 0)):
        restored = stores.open(generation, slice_number=number, rollbacks=(rollback,), last=9).restore()
        assert restored is not None
        assert int(restored.step) == 10

    assert [path.parent.name.partition(".")[0] for path in stores.fast.glob(f"lineage-*/*/{MANIFEST_FILE}")] == ["10"]
    assert step_path(stores.fast, 10)
