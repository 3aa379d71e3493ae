"""Errors in the thread of a copy that no store raises: they are reported, and later copies are made."""

from typing import Any

import pytest

from tests.support.trainer.meeting import together
from tests.support.trainer.stores import Stores
from tests.support.trainer.tiny import make_world
from tests.trainer.checkpoint.test_backup import fill, source_of
from trainingjob_trainer.checkpoint import backup, step_copier
from trainingjob_trainer.checkpoint.backup import Backup
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.retention import delete_expired
from trainingjob_trainer.checkpoint.step_copier import StepCopier
from trainingjob_trainer.checkpoint.upkeep import Upkeep
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

MESSAGE = "MemoryError: Unable to allocate 30 GiB"


def fail(*_: object) -> Any:
    raise MemoryError("Unable to allocate 30 GiB")


def test_an_unexpected_error_fails_one_copy_and_a_later_one_succeeds(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stores.open()
    with monkeypatch.context() as broken:
        broken.setattr(step_copier, "_copy_file", fail)
        world.save(2)
    assert stores.failed == [(2, f"host 0 of slice 0: {MESSAGE}")]

    world.save(4)

    assert (stores.copied, stores.names()) == ([4], ["4"])


def test_all_hosts_receive_an_unexpected_error_of_one(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    record, real = fill(stores), step_copier.copy_files

    def fail_on_one(source: Any, copy: Any, wanted: Any, pace: Any) -> None:
        if "array-1" in wanted:
            fail()
        real(source, copy, wanted, pace)

    monkeypatch.setattr(step_copier, "copy_files", fail_on_one)

    def act(peers: ProcessGroup) -> Backup:
        fence = Fence(open_store(stores.fast), make_world(1, 3))
        copies = Backup(stores.config(), fence, peers, stores.events, f"host {peers.process}")
        copies.wait_for_last(source_of(stores), record, 0)
        return copies

    assert [(copies._is_failing, copies.steps_in_use) for copies in together(3, act)] == [(True, ())] * 3
    assert set(stores.failed) == {(2, f"host 1: {MESSAGE}")}


def test_no_copy_begins_after_one_process_gave_up(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    record, begun = fill(stores), []
    real = Backup._start_copy

    def start(self: Backup, *arguments: Any) -> None:
        begun.append(self._peers.process)
        real(self, *arguments)
        assert self._thread
        self._thread.join()

    def fail_on_one(self: StepCopier, source: object, record: object) -> None:
        if self._peers.process == 1:
            fail()

    monkeypatch.setattr(Backup, "_start_copy", start)
    monkeypatch.setattr(StepCopier, "copy", fail_on_one)

    def act(peers: ProcessGroup) -> tuple[int, ...]:
        fence = Fence(open_store(stores.fast), make_world(1, 2))
        copies = Backup(stores.config(), fence, peers, stores.events, "host")
        copies.copy_if_due(source_of(stores), record, 0)
        copies.copy_if_due(source_of(stores), record, 0)
        copies.wait_for_last(source_of(stores), record.model_copy(update={"step": 4}), 0)
        return copies.steps_in_use

    assert together(2, act) == [(), ()]
    assert sorted(begun) == [0, 1]
    assert stores.failed == [(2, MESSAGE), (4, MESSAGE)], "also at the end of the job"


def test_an_unexpected_error_of_a_deletion_holds_no_step(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(backup, "delete_expired", fail)
        world = stores.open(keep=1).save(2, 4)
    assert (stores.copied, stores.names()) == ([2, 4], ["2", "4"])

    monkeypatch.setattr(backup, "delete_expired", delete_expired)
    world.save(6)
    assert stores.names() == ["6"]


def test_an_unexpected_error_after_a_commit_ends_the_world(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    world = stores.open()
    monkeypatch.setattr(Upkeep, "after_commit", fail)

    with pytest.raises(MemoryError):
        world.save(2)
