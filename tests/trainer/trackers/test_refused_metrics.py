"""Metrics that a store refuses at the end of a world: they are dropped, and change no outcome."""

import errno
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.object_store import ObjectStore
from tests.trainer.trackers.test_metrics_file import JOB
from trainingjob_api.spec.metrics import Metrics
from trainingjob_trainer.store.bucket_store import BucketLog
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import FileLog
from trainingjob_trainer.trackers.metrics_file import MetricsWriter
from trainingjob_trainer.trackers.round_metrics import RoundMetrics
from trainingjob_trainer.trackers.tracker import Run

LINE: dict[str, Any] = {"time": 1.0, "generation": 1, "step": 1, "loss": 2.0}


class RefusingStore(ObjectStore):
    """A store that keeps logs as a bucket does, and refuses writes on demand."""

    refuses = False

    def open_log(self, name: str) -> Any:
        store: Any = self
        return BucketLog(store, name)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        if self.refuses:
            raise OSError(errno.EAGAIN, "mem://bucket is overloaded")
        super().write(name, chunks)


def test_a_world_that_ends_well_drops_lines_that_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    store = RefusingStore()
    with (
        caplog.at_level(logging.WARNING),
        MetricsWriter(Metrics(every_steps=1), Run(JOB, store, 0), 1, has_samples=True) as writer,
    ):
        writer.write_step(LINE)
        store.refuses = True

    assert store.objects["metrics/metrics.jsonl"] == b""
    assert "mem://bucket/metrics/metrics.jsonl" in caplog.text
    assert "is overloaded" in caplog.text


def test_the_error_of_a_world_stays_the_one_that_is_reported() -> None:
    store = RefusingStore()

    def fail() -> None:
        with MetricsWriter(Metrics(every_steps=1), Run(JOB, store, 0), 1) as writer:
            writer.write_step(LINE)
            store.refuses = True
            raise ValueError("the loss is not finite")

    with pytest.raises(ValueError, match="the loss is not finite"):
        fail()


def test_the_next_round_of_a_replica_begins_although_lines_are_refused() -> None:
    store = RefusingStore()
    with RoundMetrics(Metrics(every_steps=1), Run(JOB, store, 0), 1) as metrics:
        metrics.write_step(LINE)
        metrics.end_round(is_writer=True)
        store.refuses = True
        metrics.begin_round()
        store.refuses = False
        metrics.write_step(LINE | {"step": 2})
        metrics.end_round(is_writer=True)

    assert store.objects["metrics/metrics.jsonl"].count(b'"step": 2') == 1


def test_a_file_that_cannot_be_closed_changes_no_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = FileLog.close

    def refuse(log: FileLog) -> None:
        close(log)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")  # NFS reports a late write with the close

    monkeypatch.setattr(FileLog, "close", refuse)
    with MetricsWriter(Metrics(every_steps=1), Run(JOB, open_store(tmp_path), 0), 1) as writer:
        writer.write_step(LINE)

    assert b'"loss": 2.0' in (tmp_path / "metrics/metrics.jsonl").read_bytes()
