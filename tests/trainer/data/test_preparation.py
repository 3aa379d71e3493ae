"""Preparation in parts: by several processes and hosts, each file read once, and nothing done twice after a restart."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.preparation import LENGTH, make_writer, write_text
from tests.support.trainer.texts import dataset_folder, fail, grow, index_of
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import TextSource
from trainingjob_trainer.data import dataset_writer, token_cache
from trainingjob_trainer.data.dataset_writer import HostShare, create_dataset, help_to_create
from trainingjob_trainer.data.preparation import listed_files, parts, worker_pool
from trainingjob_trainer.data.preparation.listed_files import list_dataset
from trainingjob_trainer.data.preparation.parts import PartWriter
from trainingjob_trainer.data.preparation.worker_pool import count_cpus, ignore_parts, write_parts
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.token_cache import JobDatasets, prepare_datasets
from trainingjob_trainer.store.opening import open_store


def tokens_of(writer: PartWriter, part: int) -> list[int]:
    content = b"".join(writer.store.read_chunks(writer.file_name(part, "tokens")))
    return np.frombuffer(content, np.uint16).tolist()


SIZES: dict[str, tuple[list[int], list[list[int]]]] = {
    "small files share a part": ([5, 5, 5], [[0, 1, 2]]),
    "a part is full": ([10, 10, 1], [[0, 1], [2]]),
    "a large file": ([5, 90, 5], [[0], [1], [2]]),
    "empty files": ([0, 0], [[0, 1]]),
}


@pytest.mark.parametrize(("sizes", "want"), SIZES.values(), ids=SIZES)
@pytest.mark.usefixtures("small_parts")
def test_files_are_divided_into_parts(tmp_path: Path, sizes: list[int], want: list[list[int]]) -> None:
    grow(tmp_path, **{f"{number}.txt": "x" * size for number, size in enumerate(sizes)})

    found = list_dataset([("spec.data.train[0]", TextSource(name="text", path=str(tmp_path)))])

    assert [list(part.files) for part in found.parts] == want


def test_each_file_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    write_text(tmp_path)

    index_of(tmp_path, **LENGTH)

    assert reads == ["0.txt", "1.txt", "2.txt"]


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts")
def test_parts_give_the_same_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    in_parts = index_of(tmp_path, **LENGTH)
    assert [path.name for path in dataset_folder(tmp_path).iterdir() if path.is_dir()] == []
    monkeypatch.setattr(listed_files, "PART_BYTES", 1 << 20)
    (tmp_path / "checkpoints").rename(tmp_path / "before")

    whole = index_of(tmp_path, **LENGTH)

    assert whole.train.tokens.tolist() == in_parts.train.tokens.tolist()
    assert (whole.train.dataset_hash, whole.report) == (in_parts.train.dataset_hash, in_parts.report)


@pytest.mark.usefixtures("small_parts")
def test_a_restart_continues_after_the_last_part(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path)
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    (tmp_path / "text/2.txt").write_bytes(b"\xff" * 15)
    fail(lambda: index_of(tmp_path, **LENGTH))
    before = len(reads)
    changed = (tmp_path / "text/2.txt").stat()
    monkeypatch.setattr(SourceFile, "read_chunks", lambda file: (one for one in [b"c" * 15]))

    assert (reads, before) == (["0.txt", "1.txt", "2.txt"], 3)
    assert index_of(tmp_path, **LENGTH).train.num_tokens == 48
    assert (tmp_path / "text/2.txt").stat().st_mtime_ns == changed.st_mtime_ns


@pytest.mark.usefixtures("small_parts")
def test_hosts_share_the_parts(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path, 5)
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    root = tmp_path / "checkpoints"
    root.mkdir()
    config = make_config(make_spec(root, tmp_path / "text", **LENGTH))
    ((_, sources),) = token_cache._sources_by_dataset(config.spec)

    help_to_create(open_store(root), sources, config.spec, HostShare(1, 4))
    by_helper = list(reads)
    prepare_datasets(open_store(root), config, HostShare(0, 4))

    assert by_helper == ["1.txt"]
    assert sorted(reads) == [f"{number}.txt" for number in range(5)]


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts")
def test_a_host_that_is_late_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    root = tmp_path / "checkpoints"
    root.mkdir()
    config = make_config(make_spec(root, tmp_path / "text", **LENGTH))
    ((_, sources),) = token_cache._sources_by_dataset(config.spec)
    write = write_parts

    def lead_meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(dataset_writer, "write_parts", write)
        prepare_datasets(open_store(root), config, HostShare())
        write(*arguments)

    monkeypatch.setattr(dataset_writer, "write_parts", lead_meanwhile)
    help_to_create(open_store(root), sources, config.spec, HostShare(1, 2))

    assert not (dataset_folder(tmp_path) / "parts").exists()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("step", ["write_parts", "_DatasetJoiner"])
def test_a_slice_needs_nothing_that_another_replica_has_replaced(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_text(tmp_path)
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    writer, wanted = make_writer(tmp_path), getattr(dataset_writer, step)

    def create(slice_number: int) -> None:
        create_dataset(writer, HostShare(slice_number, 2, replica_hosts=1))

    def create_meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(dataset_writer, step, wanted)
        create(1)
        return wanted(*arguments)

    monkeypatch.setattr(dataset_writer, step, create_meanwhile)
    create(0)

    assert reads == (["1.txt", "0.txt", "2.txt"] if step == "write_parts" else ["0.txt", "2.txt", "1.txt"])
    assert writer.list_complete_parts() == []


def test_a_slice_needs_no_downloads_that_another_replica_has_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path)
    root = tmp_path / "checkpoints"
    root.mkdir()
    config, create = make_config(make_spec(root, tmp_path / "text", **LENGTH)), token_cache._create_datasets

    def prepare(slice_number: int) -> JobDatasets:
        return prepare_datasets(open_store(root), config, HostShare(slice_number, 2, replica_hosts=1))

    def prepare_meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(token_cache, "_create_datasets", create)
        prepare(1)
        raise FileNotFoundError(2, "a download is gone")

    monkeypatch.setattr(token_cache, "_create_datasets", prepare_meanwhile)

    assert prepare(0).train.num_tokens > 0


def test_a_host_that_cannot_help_is_silent(tmp_path: Path) -> None:
    config = make_config(make_spec(tmp_path, tmp_path / "nowhere"))
    ((_, sources),) = token_cache._sources_by_dataset(config.spec)

    help_to_create(open_store(tmp_path), sources, config.spec, HostShare(1, 2))

    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts")
def test_worker_processes_write_the_parts(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    write_text(tmp_path)
    writer, done = make_writer(tmp_path), list[int]()

    write_parts(writer, range(3), lambda part, _: done.append(part))

    assert [one.returncode for one in processes] == [0, 0]
    assert sorted(done) == [0, 1, 2]
    assert [tokens_of(writer, part) for part in range(3)] == [[97 + part] * 15 + [256] for part in range(3)]


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts", "processes")
def test_an_error_of_a_worker_names_the_file(tmp_path: Path) -> None:
    write_text(tmp_path)
    (tmp_path / "text/1.txt").write_bytes(b"\xff" * 15)

    error = fail(lambda: write_parts(make_writer(tmp_path), range(3), ignore_parts))

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.data.train[0].path", True)
    assert "1.txt is not UTF-8 text" in str(error)


ENDS = {
    "no memory": (
        signal.SIGKILL,
        "spec.runtime.resources.memory",
        "was killed by signal 9, perhaps because memory ran out. Raise spec.runtime.resources.memory",
    ),
    "a crash": (
        signal.SIGSEGV,
        "spec.data",
        "was killed by signal 11. The log of this host shows its error. If it happens again, leave the file out",
    ),
}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("number", "path", "words"), ENDS.values(), ids=ENDS)
def test_a_killed_worker_is_reported(
    tmp_path: Path,
    processes: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    path: str,
    words: str,
) -> None:
    write_text(tmp_path)
    dump: Callable[..., None] = worker_pool.pickle.dump

    def kill_instead(*arguments: Any) -> None:
        processes[-1].send_signal(number)
        processes[-1].wait()
        dump(*arguments)

    monkeypatch.setattr(worker_pool.pickle, "dump", kill_instead)

    error = fail(lambda: write_parts(make_writer(tmp_path), range(3), ignore_parts))

    assert (error.path, error.fatal) == (path, False)
    assert words in str(error)


QUOTAS = {"no limit": ("max 100000", 64), "a quota": ("350000 100000", 4), "less than one": ("20000 100000", 1)}


@pytest.mark.parametrize(("content", "want"), QUOTAS.values(), ids=QUOTAS)
def test_the_quota_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, want: int
) -> None:
    (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(worker_pool, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))

    assert count_cpus() == want


@pytest.mark.thorough
def test_a_worker_does_not_import_jax() -> None:
    code = "import sys, trainingjob_trainer.data.preparation.worker; sys.exit('jax' in sys.modules)"

    assert subprocess.run([worker_pool.sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["json", "tokens"])
@pytest.mark.usefixtures("small_parts")
def test_a_damaged_part_is_reported(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    write = parts.PartWriter.write

    def damage(writer: PartWriter, part: int, *report: Any) -> None:
        write(writer, part, *report)
        writer.store.write(writer.file_name(part, name), (b"{}",))

    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    monkeypatch.setattr(parts.PartWriter, "write", damage)

    error = fail(lambda: index_of(tmp_path, **LENGTH))

    assert (error.reason, error.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts", "processes")
def test_workers_read_ids_and_random_tokens_and_skip_bad_records(tmp_path: Path) -> None:
    ids = np.arange(40, dtype=np.uint16)
    grow(tmp_path / "text", **{"a.jsonl": b'{"text": "one"}\n{"text": 1}', "b.jsonl": b'{\n{"text": "two"}'})
    np.save(tmp_path / "text/a.npy", ids)
    path = str(tmp_path / "text")
    sources = [
        {"name": "records", "format": "jsonl", "path": path, "onBadRecord": "skip"},
        {"name": "ids", "format": "tokens", "path": path},
        {"name": "random", "format": "synthetic", "synthetic": {"tokens": 100}},
    ]

    made = index_of(tmp_path, data__train=sources, **LENGTH)

    reports = {one.name: one for one in made.report.sources}
    assert made.train.tokens[:8].tolist() == [*b"one", 256, *b"two", 256]
    assert made.train.tokens[8:48].tolist() == ids.tolist()
    assert [(one.reason, one.count) for one in reports["records"].skipped] == [("otherName", 1), ("badRecord", 2)]
    assert (reports["ids"].documents, reports["random"].tokens) == (1, 100)
