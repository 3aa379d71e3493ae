"""Hosts that still tokenize a part when the dataset is complete: its parts are deleted, and no host fails."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.preparation import LENGTH, make_writer, write_text
from tests.support.trainer.texts import dataset_folder
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.world import RunConfig
from trainingjob_trainer.data import token_cache
from trainingjob_trainer.data.dataset_writer import HostShare, help_to_create
from trainingjob_trainer.data.preparation import preparation_tracker, worker_pool
from trainingjob_trainer.data.preparation.listed_files import Sources
from trainingjob_trainer.data.preparation.parts import PartWriter
from trainingjob_trainer.data.preparation.preparation_tracker import PreparationTracker
from trainingjob_trainer.data.preparation.worker_pool import write_parts
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.token_cache import prepare_datasets
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import PosixStore

pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Return the config of a job whose text is three parts, on hosts with one CPU."""
    write_text(tmp_path)
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    root = tmp_path / "checkpoints"
    root.mkdir()
    return make_config(make_spec(root, tmp_path / "text", **LENGTH))


def list_sources(config: RunConfig) -> Sources:
    ((_, sources),) = token_cache._sources_by_dataset(config.spec)
    return sources


def run_while_reading(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run an action when the next file is open, in the middle of its part."""
    read = SourceFile.read_chunks

    def read_and_run(file: SourceFile) -> Iterator[bytes]:
        monkeypatch.setattr(SourceFile, "read_chunks", read)
        action()
        yield from read(file)

    monkeypatch.setattr(SourceFile, "read_chunks", read_and_run)


def test_a_part_that_is_complete_too_late_is_not_missed(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "checkpoints")
    run_while_reading(monkeypatch, lambda: prepare_datasets(store, config, HostShare(0, 2)))

    help_to_create(store, list_sources(config), config.spec, HostShare(1, 2))

    assert prepare_datasets(store, config, HostShare(1, 2)).train.num_tokens == 48
    assert [path for path in dataset_folder(tmp_path).iterdir() if path.is_dir()] == []


def test_a_folder_that_cannot_be_written_fails_the_host(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PosixStore, "write", refuse)

    with pytest.raises(OSError, match="No space left"):
        help_to_create(open_store(tmp_path / "checkpoints"), list_sources(config), config.spec, HostShare(1, 2))


def test_parts_that_cannot_be_deleted_fail_no_job(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: PosixStore, folder: str) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), folder)

    monkeypatch.setattr(PosixStore, "delete_tree", refuse)

    assert prepare_datasets(open_store(tmp_path / "checkpoints"), config, HostShare()).train.num_tokens == 48
    assert "cannot delete the parts of a complete dataset" in caplog.text


def test_parts_of_a_dataset_that_another_replica_has_completed_are_not_missed(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    del config
    writer, seen = make_writer(tmp_path), list[PreparationProgress]()
    monkeypatch.setattr(PartWriter, "list_complete_parts", lambda _: [1])
    monkeypatch.setattr(preparation_tracker, "REPORT_SECONDS", 0.0)

    write_parts(writer, [0], PreparationTracker([writer], seen.append).follow(writer))

    assert seen[-1].done_bytes == 15


def test_a_waiting_host_seldom_asks_the_store(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of hosts wait for hours, and a bucket counts and limits requests."""
    waits: list[float] = []

    class LongEnoughError(Exception):
        pass

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2000 or sum(waits) > 3600:
            raise LongEnoughError

    monkeypatch.setattr(token_cache.time, "sleep", sleep)
    with pytest.raises(LongEnoughError):
        prepare_datasets(open_store(tmp_path / "checkpoints"), config, None)

    assert waits[0] < 0.1
    assert sum(waits) > 3600
