"""Metrics files and plots: written and truncated lines, and storage that is full, foreign or hangs."""

import json
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto import event_pb2

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.cases import each
from tests.support.trainer.object_store import ObjectStore
from tests.trainer.checkpoint.test_foreign import NOT_FILES, stretch
from tests.trainer.test_reports import read_lines, reporting
from trainingjob_agent.shared_files import append_record
from trainingjob_api.protocol import FailureReason, Progress
from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.world import JobIdentity
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.posix import FileLog
from trainingjob_trainer.trackers.metrics_file import MetricsWriter, TextOfPrompt, describe_step
from trainingjob_trainer.trackers.tracker import Point, Run, TrackerThread

JOB = JobIdentity(name="demo", namespace="research", uid="11111111-2222-3333-4444-555555555555")


def test_a_store_of_objects_keeps_lines_and_plots() -> None:
    store = ObjectStore()
    for generation in (1, 2):
        with MetricsWriter(Metrics(every_steps=1), Run(JOB, store, 0), generation) as writer:
            write(writer, 1, range(4))
        store.objects["metrics/metrics.jsonl"] += b'{"half of a li'

    names = sorted(store.objects)
    lines = store.objects["metrics/metrics.jsonl"].splitlines()
    assert [json.loads(line)["generation"] for line in lines[:-1]] == [1, 2]
    assert [name.partition("events")[0] for name in names] == ["metrics/metrics.jsonl", "metrics/tensorboard/"]


def open_writer(root: Path, *, generation: int = 1, **metrics: Any) -> MetricsWriter:
    return MetricsWriter(
        Metrics(**{"every_steps": 1} | metrics), Run(JOB, open_store(root), generation - 1), generation
    )


SAMPLE = TextOfPrompt("held", 1, "Once", " upon\na *time*", 4, 0.5)


def test_samples_are_lines_of_their_own_file_and_texts_of_the_plots(tmp_path: Path) -> None:
    for generation in (1, 2):
        run = Run(JOB, open_store(tmp_path), 0)
        with MetricsWriter(Metrics(every_steps=1), run, generation, has_samples=True) as writer:
            writer.write_sample(10, SAMPLE)
        with (tmp_path / "metrics/samples.jsonl").open("a") as file:
            file.write('{"half of a li')

    lines = (tmp_path / "metrics/samples.jsonl").read_text().splitlines()
    assert [{**json.loads(line), "time": 0} for line in lines[:-1]] == [
        {"time": 0, "generation": generation, "step": 10, **SAMPLE._asdict()} for generation in (1, 2)
    ]
    files = sorted((tmp_path / "metrics/tensorboard").iterdir())
    first, *_ = (value for event in read_events(files[0]) for value in event.summary.value)
    assert first.tag == "held_out/held/sample_1/text_summary"
    assert first.tensor.string_val == [b"    Once upon\n    a *time*\n"]
    assert first.metadata.plugin_data.plugin_name == "text"
    assert (tmp_path / "metrics/metrics.jsonl").read_text() == ""


def progress(step: int, loss: float | None = 2.0) -> Progress:
    return Progress(step=step, loss=loss, grad_norm=1.0, learning_rate=0.1, tokens_per_second=10.0, step_seconds=0.1)


def write(writer: MetricsWriter, step: int, slots: range, *, every: int = 1, last: bool = False) -> None:
    if line := describe_step(progress(step), slots, every, writer._generation, last=last):
        writer.write_step(line)


def test_due_steps_and_the_last_are_written_with_their_generation(tmp_path: Path) -> None:
    with open_writer(tmp_path, every_steps=2, tensorboard=False, generation=3) as writer:
        for step in (1, 2, 3):
            write(writer, step, range(4 * step - 4, 4 * step), every=2, last=step == 3)
        writer.write_evaluation(3, "held", {"loss": 1.25, "accuracy": 0.5})

    lines = read_lines(tmp_path)
    assert [(line["generation"], line["step"], line.get("loss")) for line in lines] == [
        (3, 2, 2.0),
        (3, 3, 2.0),
        (3, 3, None),
    ]
    assert (lines[2]["evaluation"], lines[2]["held_out_loss"], lines[2]["held_out_accuracy"]) == ("held", 1.25, 0.5)


def test_a_line_that_a_killed_writer_left_half_is_cut(tmp_path: Path) -> None:
    with open_writer(tmp_path, tensorboard=False, generation=1) as writer:
        write(writer, 1, range(4))
    with (tmp_path / "metrics/metrics.jsonl").open("a") as file:
        file.write('{"generation": 1, "st')

    with open_writer(tmp_path, tensorboard=False, generation=2) as writer:
        write(writer, 2, range(4, 8))

    assert [line["step"] for line in read_lines(tmp_path)] == [1, 2]


LOST: dict[str, tuple[list[int], bytes, list[int]]] = {
    "none": ([1, 2, 3], b"", [1, 2, 3, 4]),
    "the newest": ([1, 2], b"", [1, 2, 3, 4]),
    "the two newest": ([1], b"", [1, 2, 3, 4]),
    "the newest, half of it was written": ([1, 2], b'{"generation": 1, "step": 3, "lo', [1, 2, 3, 4]),
    "the newest, after lines of somebody else": ([1, 2], b"\xff\n[1]\n{}\n", [1, 2, 3, 4]),
}


@each("written", LOST)
def test_lines_that_a_lost_host_did_not_write_are_recovered_once(
    tmp_path: Path, written: tuple[list[int], bytes, list[int]]
) -> None:
    steps, more, want = written
    with open_writer(tmp_path, tensorboard=False, generation=1) as writer:
        for step in steps:
            write(writer, step, range(4))
    with (tmp_path / "metrics/metrics.jsonl").open("ab") as file:
        file.write(more)
    recent = [describe_step(progress(step), range(4), 1, 1, last=False) for step in (2, 3)]

    with open_writer(tmp_path, tensorboard=False, generation=2) as writer:
        writer.recover([line for line in recent if line])
        write(writer, 4, range(4))

    text = (tmp_path / "metrics/metrics.jsonl").read_bytes()
    lines = [json.loads(line) for line in text.splitlines() if b'"loss"' in line]
    assert [line["step"] for line in lines] == want
    assert [line["generation"] for line in lines] == [1, 1, 1, 2]


@pytest.mark.parametrize("tail", [b"\0" * 200_000, b"x" * 65_536, b'{"st', b""], ids=len)
@pytest.mark.parametrize("whole", [b"", b'{"step": 1}\n', b'{"step": 1}\n' * 20_000], ids=len)
def test_a_torn_line_is_cut_whatever_its_length(tmp_path: Path, whole: bytes, tail: bytes) -> None:
    path = tmp_path / "metrics/metrics.jsonl"
    path.parent.mkdir()
    path.write_bytes(whole + tail)

    open_writer(tmp_path, tensorboard=False, generation=2).__exit__(None, None, None)

    assert path.read_bytes() == whole


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    **{name: (make, "metrics.jsonl is not a regular file") for name, make in NOT_FILES.items()},
    "a huge file without a line": (lambda path: stretch(path, 1 << 40), "metrics.jsonl has no line in its last"),
}


@pytest.mark.parametrize(("make", "words"), FOREIGN.values(), ids=FOREIGN)
def test_foreign_metrics_file_is_reported_and_not_changed(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    (tmp_path / "metrics").mkdir()
    make(tmp_path / "metrics/metrics.jsonl")
    before = os.lstat(tmp_path / "metrics/metrics.jsonl")

    with pytest.raises(TrainingError, match=words) as caught, reporting(tmp_path, process=0):
        pass

    assert (caught.value.reason, caught.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")
    assert os.lstat(tmp_path / "metrics/metrics.jsonl").st_size == before.st_size


def test_a_loss_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    with open_writer(tmp_path, tensorboard=False) as writer:
        writer.write_evaluation(1, "held", {"loss": float("nan")})

    assert read_lines(tmp_path)[0]["held_out_loss"] is None


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        write(writer, 4, range(12, 16))

    (path,) = (tmp_path / "metrics/tensorboard").iterdir()
    seen = {value.tag: (event.step, value.simple_value) for event in read_events(path) for value in event.summary.value}
    assert seen["train/loss"] == (4, 2.0)


def test_a_full_disk_stops_neither_lines_nor_plots_nor_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Path("/dev/full").open("ab", buffering=0) as full, open_writer(tmp_path) as writer:
        (thread,) = writer._trackers
        board: Any = thread._tracker
        lines, plots = writer._lines, board._file
        wait_until_written(thread)
        writer._lines = board._file = FileLog(full)
        for step in range(1, 40):
            write(writer, step, range(4))
        wait_until_written(thread)
        writer._lines, board._file = lines, plots
        write(writer, 40, range(4))

    (path,) = (tmp_path / "metrics/tensorboard").iterdir()
    assert {event.step for event in read_events(path) if event.summary.value} == {40}
    assert [line["step"] for line in read_lines(tmp_path)] == [40]
    assert sorted(record.message.partition(" error=")[0] for record in caplog.records) == [
        "metrics write failed",
        "tracker write failed tracker=tensorboard",
    ]


def wait_until_written(thread: TrackerThread) -> None:
    """Wait until the thread has handled everything so far."""
    written = threading.Event()
    last: Any = SimpleNamespace(items=lambda: written.set() or ())
    thread.add(Point("last", 0, 1, 0.0, last))
    assert written.wait(ENDLESS_SECONDS)


def test_a_record_that_a_full_disk_took_half_of_is_cut(tmp_path: Path) -> None:
    class Half(FileIO):
        def write(self, record: Any) -> int:
            return super().write(record[: len(record) // 2])

    with FileIO(tmp_path / "lines", "ab") as file, Half(tmp_path / "lines", "ab") as full:
        append_record(file, b"whole\n")
        with pytest.raises(OSError, match="No space left on device"):
            append_record(full, b"half of it\n")

    assert (tmp_path / "lines").read_bytes() == b"whole\n"


def read_events(path: Path) -> list[event_pb2.Event]:
    """Read TensorBoard's records: length, its checksum, the event, its checksum."""
    content, place, found = path.read_bytes(), 0, []
    while place < len(content):
        size = int.from_bytes(content[place : place + 8], "little")
        found.append(event_pb2.Event.FromString(content[place + 12 : place + 12 + size]))
        place += 16 + size
    return found
