"""The progress of a preparation: of one part, of all datasets of a job, and over restarts and other hosts."""

import gzip
import subprocess
from pathlib import Path

import pytest

from tests.support.trainer.preparation import LENGTH, make_writer, write_text
from tests.support.trainer.texts import fail, grow, index_of
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.data_report import PreparationProgress
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.preparation import part_progress, preparation_tracker, worker_pool
from trainingjob_trainer.data.preparation.part_progress import PartProgress
from trainingjob_trainer.data.preparation.worker_pool import write_parts
from trainingjob_trainer.data.token_cache import prepare_datasets
from trainingjob_trainer.store.opening import open_store

EAGER_WORKER = """
from trainingjob_trainer.data.preparation import part_progress, worker
part_progress.REPORT_SECONDS = 0.0
worker.main()
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts")
def test_worker_processes_report_their_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path, 2)
    start, seen = subprocess.Popen, list[tuple[int, PartProgress | None]]()
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 2)
    monkeypatch.setattr(
        worker_pool.subprocess, "Popen", lambda command, **pipes: start([command[0], "-c", EAGER_WORKER], **pipes)
    )

    write_parts(make_writer(tmp_path), range(2), lambda *news: seen.append(news))

    for part in range(2):
        assert [news for one, news in seen if one == part] == [PartProgress(15, 1, 16), None]


def test_a_part_reports_the_documents_that_are_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path, 2)
    monkeypatch.setattr(part_progress, "REPORT_SECONDS", 0.0)
    seen: list[PartProgress] = []

    make_writer(tmp_path).write(0, seen.append)

    assert seen == [PartProgress(15, 1, 16), PartProgress(30, 2, 32)]


def test_compressed_files_count_once_they_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"a" * 100)
    grow(tmp_path / "text", **{"1.txt.gz": packed, "2.txt.gz": packed})
    monkeypatch.setattr(part_progress, "REPORT_SECONDS", 0.0)
    seen: list[PartProgress] = []
    pattern = {"data__train": [{"name": "text", "path": str(tmp_path / "text"), "pattern": "*.gz"}]}

    make_writer(tmp_path, **pattern).write(0, seen.append)

    assert [one.size for one in seen] == [0, len(packed)]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[PreparationProgress]:
    """Return the reports of a preparation, which are due at each change."""
    monkeypatch.setattr(preparation_tracker, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(part_progress, "REPORT_SECONDS", 0.0)
    return []


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts", "processes")
def test_the_progress_of_all_datasets_is_reported(
    tmp_path: Path, reports: list[PreparationProgress], caplog: pytest.LogCaptureFixture
) -> None:
    write_text(tmp_path)
    grow(tmp_path / "held-out", **{"a.txt": "z" * 25})
    (tmp_path / "checkpoints").mkdir()
    held_out = {"evaluation": [{"name": "held", "path": str(tmp_path / "held-out"), "everySteps": 1}]}
    config = make_config(make_spec(tmp_path / "checkpoints", tmp_path / "text", **LENGTH, **held_out))
    caplog.set_level("INFO")

    prepare_datasets(open_store(tmp_path / "checkpoints"), config, HostShare(), reports.append)

    assert {one.total_bytes for one in reports} == {70}
    assert [one.done_bytes for one in reports] == sorted(one.done_bytes for one in reports)
    assert (reports[-1].done_bytes, reports[-1].documents, reports[-1].tokens) == (70, 4, 74)
    assert (reports[-1].eta_seconds, reports[-1].ratio) == (0, 1.0)
    assert "tokenized 0.0 of 0.0 GB, 4 documents, 74 tokens" in caplog.text


@pytest.mark.usefixtures("small_parts")
def test_parts_of_earlier_attempts_and_of_other_hosts_count(
    tmp_path: Path, reports: list[PreparationProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path, 4)
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    writer = make_writer(tmp_path)
    writer.write(0)
    followed = preparation_tracker.PreparationTracker([writer], reports.append).follow(writer)

    followed(1, PartProgress(5, 0, 5))
    writer.write(2)
    followed(1, PartProgress(10, 0, 10))
    writer.write(1)
    followed(1, None)

    assert [(one.done_bytes, one.documents, one.tokens) for one in reports] == [(20, 1, 21), (40, 2, 42), (45, 3, 48)]


def test_a_short_preparation_reports_nothing(tmp_path: Path) -> None:
    write_text(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    config = make_config(make_spec(tmp_path / "checkpoints", tmp_path / "text", **LENGTH))
    reports: list[PreparationProgress] = []

    prepare_datasets(open_store(tmp_path / "checkpoints"), config, HostShare(), reports.append)

    assert reports == []


def test_a_missing_evaluation_fails_before_the_training_text_is_read(tmp_path: Path, reads: list[str]) -> None:
    write_text(tmp_path)

    error = fail(
        lambda: index_of(
            tmp_path, evaluation=[{"name": "held", "path": str(tmp_path / "nowhere"), "everySteps": 1}], **LENGTH
        )
    )

    assert (error.path, reads) == ("spec.evaluation[0].path", [])
