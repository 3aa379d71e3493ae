"""Errors in the thread of kept exports that no store raises: exports continue, or the job does not succeed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.meeting import together
from tests.support.trainer.tiny import make_world
from tests.trainer.checkpoint.test_kept_exports import Job, exports_of
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.checkpoint import kept_exports
from trainingjob_trainer.checkpoint.export_folders import RECORD_FILE
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.kept_exports import KeptExports, find_kept_export
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

MESSAGE = "host 0 of slice 0: MemoryError: Unable to allocate 30 GiB"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.file.close()


def fail(*_: object) -> Any:
    raise MemoryError("Unable to allocate 30 GiB")


def test_an_unexpected_error_fails_one_export_and_the_next_save_repeats_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = job.open()
    with monkeypatch.context() as broken:
        broken.setattr(kept_exports, "write_own_files", fail)
        job.save(world, 2)
    assert (job.failed, exports_of(world).steps_in_use) == ([(2, MESSAGE)], ())

    job.save(world, 4)

    assert (job.complete(), job.reported) == ([2, 4], [4, 2])


def test_an_unexpected_error_of_the_last_export_fails_the_attempt(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    world = job.open()
    monkeypatch.setattr(kept_exports, "write_own_files", fail)
    job.save(world, 2)

    with pytest.raises(TrainingError, match=r"MemoryError: Unable to allocate 30 GiB.* the next attempt exports them"):
        world.finish_exports()


def test_an_unexpected_error_between_exports_fails_the_attempt_and_holds_no_step(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = job.open()
    with monkeypatch.context() as broken:
        broken.setattr(KeptExports, "_choose_next", fail)
        job.save(world, 2)
    assert job.failed == [(2, "MemoryError: Unable to allocate 30 GiB")]
    assert exports_of(world).steps_in_use == ()

    with pytest.raises(TrainingError, match="MemoryError: Unable to allocate 30 GiB") as caught:
        world.finish_exports()
    assert (caught.value.reason, caught.value.fatal) == (FailureReason.STORAGE, False)


def test_all_hosts_learn_of_an_unexpected_error_of_one(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.save(job.open(), 2)
    (job.folder(2) / RECORD_FILE).unlink()
    world, real = make_world(2, 3), kept_exports.write_own_files

    def fail_on_one(plan: Any, gather: Any, store: Any, process: int, num_processes: int) -> None:
        if process == 1:
            fail()
        real(plan, gather, store, process, num_processes)

    def act(peers: ProcessGroup) -> str:
        config = job.config()
        export, fence = find_kept_export(config), Fence(open_store(job.saved), world)
        assert export
        exports = KeptExports(export, config, open_store(job.saved), fence, peers, job.events, f"host {peers.process}")
        with pytest.raises(TrainingError) as caught:
            exports.finish()
        return str(caught.value)

    monkeypatch.setattr(kept_exports, "write_own_files", fail_on_one)
    messages = together(3, act)

    assert all("host 1: MemoryError: Unable to allocate 30 GiB" in message for message in messages), messages
