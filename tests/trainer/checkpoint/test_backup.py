"""Copies on a second store: complete or absent, made on schedule, and reported when they fail."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.meeting import together
from tests.support.trainer.shelf import at, flip, list_steps, step_path
from tests.support.trainer.stores import FIRST, Stores, largest
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import Clock, make_state
from trainingjob_agent.checkpoint_layout import hash_job
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.checkpoint import backup, step_copier
from trainingjob_trainer.checkpoint.backup import LAST_COPY_SECONDS, RETRY_SECONDS, Backup, claim
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import (
    FileHash,
    Integrity,
    RateLimit,
    find_damage,
    hash_files,
    list_files,
    read_integrity,
)
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trainingjob_trainer.checkpoint.backup.time", clock)
    return clock


def test_a_copy_is_the_step_itself_with_its_proof(stores: Stores) -> None:
    stores.open().save(2)

    saved, copy = at(step_path(stores.fast, 2)), at(step_path(stores.slow, 2))
    record = read_integrity(copy)
    assert record == read_integrity(saved)
    assert record
    assert copy.name == saved.name
    assert list_files(copy) == list_files(saved)
    assert find_damage(copy, record.files) == ""
    assert (stores.copied, stores.failed) == ([2], [])


def test_full_backup_is_reported_and_used_again_without_blocking(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stores.open(every="1h")
    with monkeypatch.context() as full:

        def write_some(source: StepFolder, copy: StepFolder, name: str, pace: RateLimit) -> None:
            copy.store.write(copy.file(name), (b"some",))
            raise OSError(errno.ENOSPC, "")

        full.setattr(step_copier, "_copy_file", write_some)
        world.save(2)
    assert (world.checkpoints.is_failing, world.checkpoints.newest) == (False, 2)
    assert stores.failed == [(2, "host 0 of slice 0: No space left on device")]
    assert stores.names() == [], "what fills the disk is gone"

    clock.now += RETRY_SECONDS - 1
    world.save(4)
    assert stores.copied == []
    clock.now += 1
    world.save(6)
    assert (stores.copied, stores.names()) == ([6], ["6"])


def test_a_file_that_changed_before_it_was_copied_is_found(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Backup.copy_if_due

    def flip_first(self: Backup, folder: StepFolder, record: Integrity, restored: int) -> None:
        flip(largest(Path(folder.location)))
        real(self, folder, record, restored)

    monkeypatch.setattr(Backup, "copy_if_due", flip_first)

    stores.open().save(2)

    ((step, message),) = stores.failed
    assert (step, message.endswith("has changed since it was saved")) == (2, True)
    assert (stores.copied, stores.names()) == ([], [])


def test_a_backup_folder_that_takes_nothing_stops_nothing(stores: Stores) -> None:
    stores.slow.parent.mkdir()
    stores.slow.write_text("a file")

    claim(stores.config())
    world = stores.open()
    assert world.restore() is None
    world.save(2)

    assert world.checkpoints.newest == 2
    ((step, message),) = stores.failed
    assert step == 2
    assert message.startswith(f"host 0 of slice 0: writing to {stores.slow} failed: ")


def test_the_newest_copies_stay_and_the_one_that_was_restored(stores: Stores) -> None:
    stores.open(keep=2).save(2, 4, 6)
    assert stores.names() == ["4", "6"]
    shutil.rmtree(stores.fast)

    second = stores.open(2, FIRST, keep=1)
    second.restore()
    second.save(8, 10)

    assert stores.names() == ["10", "6"]


def test_copies_are_made_on_schedule_and_at_the_first_and_last_step(stores: Stores, clock: Clock) -> None:
    world = stores.open(every="10m").save(2)
    clock.now += 599
    world.save(4)
    assert stores.copied == [2]
    clock.now += 1
    world.save(6, 8)
    assert stores.copied == [2, 6]

    world.checkpoints.wait_for_backup()
    assert stores.copied == [2, 6, 8]
    world.checkpoints.wait_for_backup()
    assert stores.copied == [2, 6, 8], "once is enough"


def test_a_step_that_is_being_copied_is_not_deleted_and_no_other_is_begun(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, real = threading.Event(), step_copier._copy_file

    def copy_late(source: StepFolder, goal: StepFolder, name: str, pace: RateLimit) -> Any:
        assert goes_on.wait(ENDLESS_SECONDS)
        return real(source, goal, name, pace)

    monkeypatch.setattr(step_copier, "_copy_file", copy_late)
    world = stores.open()
    for step in (2, 4, 6):
        world.checkpoints.save(step, make_state((1, 1), step))
        world.checkpoints.wait()
    assert list_steps(stores.fast / "lineage-0") == ["2", "6"]

    goes_on.set()
    world.join()

    assert stores.copied == [2]
    world.save(8)
    assert list_steps(stores.fast / "lineage-0") == ["8"]


def test_the_end_of_a_job_does_not_wait_for_ever(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(backup, "LAST_COPY_SECONDS", 0)
    monkeypatch.setattr(step_copier, "_copy_file", lambda source, goal, name, pace: goes_on.wait(ENDLESS_SECONDS))
    world = stores.open()
    world.checkpoints.save(2, make_state((1, 1), 2))
    world.checkpoints.wait()

    world.checkpoints.wait_for_backup()

    assert stores.failed == [(2, "it took longer than 0 s, and the job is at its end")]
    goes_on.set()
    world.join()


def test_a_copy_that_ends_just_after_the_deadline_fails_nothing_else(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Backup(
        stores.config(), Fence(open_store(stores.fast), make_world(1, 1)), ProcessGroup(0, 1), stores.events, "host"
    )
    seen = iter((2, 2))
    monkeypatch.setattr(Backup, "_step_in_copy", property(lambda self: next(seen, None)), raising=False)

    copies.wait_for_last(source_of(stores), fill(stores), 0)

    assert stores.failed == [(2, f"it took longer than {LAST_COPY_SECONDS} s, and the job is at its end")]


def test_a_copy_ends_where_a_later_world_deletes_the_old_ones(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TrainingError(FailureReason.STORAGE, "this world may not write", fatal=False)

    monkeypatch.setattr(backup, "delete_expired", refuse)
    world = stores.open().save(2)

    assert world.checkpoints._upkeep.backup
    assert (stores.copied, world.checkpoints._upkeep.backup.steps_in_use) == ([2], ())


def test_no_process_begins_the_last_copy_while_another_is_busy_with_an_earlier_one(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, begun = fill(stores), []
    monkeypatch.setattr(Backup, "_start_copy", lambda self, *_: begun.append(self._peers.process))

    def act(peers: ProcessGroup, busy: int) -> None:
        copies = Backup(stores.config(), Fence(open_store(stores.fast), make_world(1, 3)), peers, stores.events, "host")
        copies._step_in_copy = 1 if peers.process == busy else None
        copies.wait_for_last(source_of(stores), record, 0)

    together(3, lambda peers: act(peers, 1))
    assert (begun, [step for step, _ in stores.failed]) == ([], [1])
    together(3, lambda peers: act(peers, 3))
    assert sorted(begun) == [0, 1, 2]


def test_the_end_of_a_job_does_not_fail_because_another_process_is_gone(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def miss(self: ProcessGroup, name: str, text: str, seconds: float) -> tuple[str, ...]:
        raise JaxRuntimeError("DEADLINE_EXCEEDED")

    monkeypatch.setattr(ProcessGroup, "exchange", miss)
    copies = Backup(
        stores.config(), Fence(open_store(stores.fast), make_world(1, 2)), ProcessGroup(0, 2), stores.events, "host"
    )

    copies.wait_for_last(source_of(stores), fill(stores), 0)

    assert stores.failed == [(2, "another process is gone: DEADLINE_EXCEEDED")]


def test_backup_of_another_job_is_rejected_except_for_a_takeover(stores: Stores) -> None:
    claim(stores.config())

    with pytest.raises(TrainingError, match="holds the checkpoints of tests/tiny") as caught:
        claim(stores.config("other"))
    assert (caught.value.reason, caught.value.path) == (FailureReason.CONFIG, "spec.checkpoint.backup.uri")

    claim(stores.config("other", takeover=True))
    for takeover in (False, True):
        with pytest.raises(TrainingError, match=r"UID other.* does not take it over again"):
            claim(stores.config(takeover=takeover))


def test_backup_folder_is_not_claimed_without_copies(stores: Stores) -> None:
    claim(make_config(make_spec(stores.fast, stores.fast)))

    assert not stores.slow.exists()


def source_of(stores: Stores) -> StepFolder:
    return at(stores.fast / f"lineage-0/2.g1.s1.{hash_job(UID)}")


def fill(stores: Stores) -> Integrity:
    source = source_of(stores)
    for number in range(4):
        source.store.write(source.file(f"array-{number}"), (bytes([number]) * 10,))
    files = hash_files(source, list_files(source))
    return Integrity(job_uid=UID, generation=1, step=2, data="d", state="s", files=files)


FAILING: dict[str, Callable[[Path, Path], None]] = {
    "a share that cannot be read": lambda fast, slow: next(fast.rglob("array-1")).unlink(),
    "a folder that cannot be made": lambda fast, slow: slow.parent.write_text("a file"),
}


@pytest.mark.parametrize("spoil", FAILING.values(), ids=FAILING.keys())
def test_hosts_split_the_files_and_all_receive_the_failure_of_one(
    spoil: Callable[[Path, Path], None], stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, real = fill(stores), step_copier.copy_files
    shares: list[list[str]] = []

    def copy_files(source: StepFolder, copy: StepFolder, wanted: Mapping[str, FileHash], pace: RateLimit) -> None:
        shares.append(sorted(wanted))
        real(source, copy, wanted, pace)

    monkeypatch.setattr(step_copier, "copy_files", copy_files)

    def act(peers: ProcessGroup) -> Backup:
        copies = Backup(
            stores.config(),
            Fence(open_store(stores.fast), make_world(1, 3)),
            peers,
            AgentEvents(os.open(os.devnull, os.O_WRONLY)),
            "host",
        )
        copies.wait_for_last(source_of(stores), record, 0)
        return copies

    assert [copies._newest for copies in together(3, act)] == [2, 2, 2]
    assert sorted(shares) == [["array-0", "array-3"], ["array-1"], ["array-2"]]
    assert find_damage(at(step_path(stores.slow, 2)), record.files) == ""

    shutil.rmtree(stores.slow.parent)
    spoil(stores.fast, stores.slow)
    assert [(copies._newest, copies._is_failing) for copies in together(3, act)] == [(0, True)] * 3
