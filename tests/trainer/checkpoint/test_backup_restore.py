"""Restores with two stores: the newest complete step of either."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from tests.support.trainer.crew import Crew
from tests.support.trainer.shelf import flip, step_path
from tests.support.trainer.stores import FIRST, Stores, largest
from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import make_state, refuse
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Rollback
from trainingjob_trainer.checkpoint import step_copier
from trainingjob_trainer.checkpoint.manifest import RateLimit
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.errors import TrainingError


def test_world_resumes_from_the_backup_if_the_store_is_empty(stores: Stores) -> None:
    stores.open().save(2)
    shutil.rmtree(stores.fast)

    second = stores.open(2, FIRST)
    restored = second.restore()

    assert restored is not None
    for seen, want in zip(*map(jax.tree.leaves, (restored, make_state((1, 1), 2))), strict=True):
        assert np.array_equal(seen, want)
    assert (second.checkpoints.tier, second.checkpoints.newest, second.checkpoints.inventory.is_saved) == (
        "backup",
        2,
        False,
    )
    assert stores.names() == ["2"], "it goes on from there, untouched"


def test_the_newest_step_counts_wherever_it_is(stores: Stores) -> None:
    stores.open(every="1h").save(2, 4)
    assert (stores.copied, stores.names()) == ([2], ["2"])

    second = stores.open(2, FIRST)

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.newest) == ("durable", 4)


def test_of_a_step_that_is_in_both_places_the_saved_one_is_read(stores: Stores) -> None:
    stores.open().save(2)

    second = stores.open(2, FIRST)

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.inventory.is_saved) == ("durable", True)


def test_a_damaged_step_is_taken_from_its_copy(stores: Stores) -> None:
    stores.open().save(2)
    flip(largest(step_path(stores.fast, 2)))

    second = stores.open(2, FIRST)

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.newest) == ("backup", 2)
    assert [one.step for one in stores.damaged] == [2]


def test_damaged_copy_is_reported_quarantined_and_skipped(stores: Stores) -> None:
    stores.open().save(2, 4)
    shutil.rmtree(stores.fast)
    flip(largest(step_path(stores.slow, 4)))

    second = stores.open(2, FIRST)

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.newest) == ("backup", 2)
    (damage,) = stores.damaged
    assert damage.step == 4
    assert damage.message.startswith(f"its copy in {stores.slow}: ")
    assert damage.message.endswith("has changed since it was saved")
    assert stores.names() == ["2", "4 quarantined"]


def test_a_damaged_copy_on_a_store_that_is_only_read_is_passed_over(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.open().save(2, 4)
    shutil.rmtree(stores.fast)
    flip(largest(step_path(stores.slow, 4)))
    monkeypatch.setattr("trainingjob_trainer.checkpoint.candidates.quarantine_step", refuse)

    second = stores.open(2, FIRST)

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.newest) == ("backup", 2)
    assert [one.step for one in stores.damaged] == [4]


def test_training_does_not_start_from_scratch_if_no_store_has_a_complete_step(stores: Stores) -> None:
    stores.open().save(2)
    shutil.rmtree(stores.fast)
    flip(largest(step_path(stores.slow, 2)))

    with pytest.raises(TrainingError, match=rf"no saved step in {stores.fast} or {stores.slow} is intact") as caught:
        stores.open(2, FIRST).restore()

    assert caught.value.reason is FailureReason.STORAGE


def test_a_copy_that_was_killed_is_no_step_and_makes_way(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stores.open().save(2)
    with monkeypatch.context() as killed:

        def die(source: StepFolder, copy: StepFolder, name: str, pace: RateLimit) -> None:
            copy.store.write(copy.file(name), (b"half",))
            raise JaxRuntimeError("UNAVAILABLE")

        killed.setattr(step_copier, "_copy_file", die)
        first.save(4)
    assert stores.names() == ["2", "4 interrupted"]
    shutil.rmtree(stores.fast)

    second = stores.open(2, FIRST)

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.newest) == ("backup", 2)
    assert stores.names() == ["2"]


def test_copies_after_the_parent_of_a_rollback_are_void(stores: Stores) -> None:
    stores.open().save(2, 4)
    shutil.rmtree(stores.fast)
    back = Rollback(lineage=1, generation=1, step=5, parent=2)

    second = stores.open(2, FIRST, rollbacks=(back,))

    assert second.restore() is not None
    assert (second.checkpoints.tier, second.checkpoints.newest) == ("backup", 2)
    assert stores.names() == ["2"]
    second.save(4)
    assert step_path(stores.slow, 4, lineage=1)


@pytest.mark.slow
def test_job_whose_store_is_lost_resumes_from_its_backup(
    crew: Crew, tmp_path: Path, text: Path, programs: Path
) -> None:
    fast, slow = tmp_path / "fast/run", tmp_path / "slow/run"
    config = make_config(make_spec(fast, text, checkpoint__backup={"uri": str(slow), "every": "1h"}, training__steps=6))
    for trainer in (first := crew.start(config, make_world(1, 2), programs)):
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert [event.copied for event in trainer.events if event.copied] == [2, 6]
    shutil.rmtree(fast)
    shutil.rmtree(step_path(slow, 6))

    for trainer in crew.start(config, make_world(2, 2, (FIRST,)), programs):
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert (trainer.restored, trainer.tier) == (2, "backup")
        assert trainer.losses == pytest.approx({step: first[0].losses[step] for step in (3, 4, 5, 6)}, abs=1e-5)
