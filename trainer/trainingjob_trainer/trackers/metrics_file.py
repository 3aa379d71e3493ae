"""The metrics file: JSON lines, which also go to the trackers that the job has switched on.

Only process 0 writes. A step that was trained again after a failure has one line per generation; the highest generation
counts. Lines that a full or failing store rejects are dropped, also at the end, and training continues. If the host of
process 0 is lost, the next world appends the lines that this host did not write.
"""

import errno
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from math import isfinite
from types import TracebackType
from typing import Any, NamedTuple, Self

from trainingjob_agent.shared_files import UntrustedFileError
from trainingjob_api.objective_metrics import ObjectiveMetrics
from trainingjob_api.protocol import Progress
from trainingjob_api.spec.metrics import Metrics
from trainingjob_trainer.store.port import Log
from trainingjob_trainer.trackers.tracker import FOLDER, Point, Run, TrackerThread, close_trackers, open_trackers

LOG = logging.getLogger(__name__)
METRICS_FILE, SAMPLES_FILE = "metrics.jsonl", "samples.jsonl"
BLOCK = 1 << 16
LONGEST_TAIL = 64 << 20
"""Maximum bytes after the last complete line. A killed writer leaves a part of a line; a lost node may leave zeros."""
OPTIONAL_METRICS = (
    *ObjectiveMetrics.model_fields,
    "snapshot",
    "snapshot_seconds",
    "save_seconds",
)
"""Metrics that are absent without z-loss, pairs of answers, experts or snapshots, or before a world's first save."""
RECENT_LINES = 4
"""Lines that every process keeps. At most two steps are complete whose lines process 0 has not written: it dispatches a
step before it writes the line of the step before, and no step completes without it."""


class TextOfPrompt(NamedTuple):
    """A text that the model wrote after an evaluation."""

    evaluation: str
    number: int
    """Place in the evaluation's list, counted from 0."""
    prompt: str
    text: str
    num_tokens: int
    temperature: float | None


type Value = float | int | str | None
type Line = dict[str, Any]


class MetricsWriter:
    """Appends to `metrics.jsonl` in the run's store, and sends each line to the trackers.

    With `has_samples`, it appends texts to `samples.jsonl` too. `trackers` stay open. None: it opens and closes them.

    Raises:
        UntrustedFileError: a file there is not one of this project.
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        metrics: Metrics,
        run: Run,
        generation: int,
        *,
        has_samples: bool = False,
        trackers: Sequence[TrackerThread] | None = None,
    ) -> None:
        self._generation = generation
        self._is_failing = False
        self._open = ExitStack()
        try:
            self._lines = self._open_log(run, METRICS_FILE)
            self._samples = self._open_log(run, SAMPLES_FILE) if has_samples else None
            self._own_trackers = open_trackers(metrics, run) if trackers is None else ()
            self._trackers = self._own_trackers if trackers is None else trackers
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        close_trackers(self._own_trackers)

    def flush(self) -> None:
        """Begin to write the lines that a store without append still lacks."""
        for log in filter(None, (self._lines, self._samples)):
            log.flush()

    def write_step(self, line: Line) -> None:
        """Write the line of a training step."""
        self._write(line, "train")

    def write_norms(self, step: int, norms: Mapping[str, float]) -> None:
        """Write the norms of tensors, their gradients and their updates."""
        self._write(_make_line(self._generation, step, dict(norms)), "statistics")

    def write_evaluation(self, step: int, name: str, scores: Mapping[str, float]) -> None:
        """Write the scores of an evaluation, by name."""
        values: dict[str, Value] = {"evaluation": name} | {f"held_out_{key}": score for key, score in scores.items()}
        self._write(_make_line(self._generation, step, values), f"held_out/{name}")

    def write_sample(self, step: int, sample: TextOfPrompt) -> None:
        """Write a text that the model wrote."""
        line = _make_line(self._generation, step, sample._asdict())
        if self._samples:
            self._append(json.dumps(line).encode() + b"\n", self._samples)
        texts = {f"sample_{sample.number}": sample.prompt + sample.text}
        for tracker in self._trackers:
            tracker.add(Point(f"held_out/{sample.evaluation}", step, self._generation, line["time"], {}, texts))

    def recover(self, recent: Sequence[Line]) -> None:
        """Write those of an earlier world's newest lines that its process 0 did not write before it was lost."""
        written = {(line.get("generation"), line.get("step")) for line in self._read_newest()} if recent else set()
        for line in recent:
            if (line["generation"], line["step"]) not in written:
                self.write_step(line)

    def _read_newest(self) -> Iterator[Line]:
        """Yield the training steps' lines at the end of the file."""
        size = self._lines.size()
        start = max(size - BLOCK, 0)
        texts = self._lines.read(start, size).split(b"\n")
        for text in texts[1 if start else 0 : -1]:
            with suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict) and "loss" in line:
                    yield line

    def _write(self, line: Line, group: str) -> None:
        self._append(json.dumps(line).encode() + b"\n", self._lines)
        values = {name: value for name, value in line.items() if isinstance(value, float) and name != "time"}
        for tracker in self._trackers:
            tracker.add(Point(group, line["step"], line["generation"], line["time"], values))

    def _open_log(self, run: Run, name: str) -> Log:
        """Open a file, without the incomplete last line of a killed writer."""
        log = run.store.open_log(f"{FOLDER}/{name}")
        self._open.callback(_close, log, run.store.locate(f"{FOLDER}/{name}"))
        _truncate_partial_line(log, name)
        return log

    def _append(self, line: bytes, log: Log) -> None:
        try:
            log.append(line)
        except OSError as error:
            if not self._is_failing:
                LOG.warning("metrics write failed error=%s", error)
            self._is_failing = True
        else:
            self._is_failing = False


def describe_step(
    progress: Progress, samples: range, every: int, generation: int, *, last: bool
) -> Line | None:  # None: it is not due
    """Return the line of a training step that is a multiple of `every`, or the last.

    `samples` are the sample indices that it used.
    """
    if progress.step % every and not last:
        return None
    absent = {name for name in OPTIONAL_METRICS if getattr(progress, name) is None}
    measures = progress.model_dump(exclude={"step", "evaluations", "scores", *absent})
    return _make_line(generation, progress.step, measures | {"first_slot": samples[0], "last_slot": samples[-1]})


def _make_line(generation: int, step: int, values: dict[str, Value]) -> Line:
    finite = {
        name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()
    }
    # The time is for people and plots; no decision depends on it.
    return {"time": round(time.time(), 3), "generation": generation, "step": step, **finite}


def _close(log: Log, location: str) -> None:
    """Close a file. Lines that the store refuses must neither fail a world that ends well, nor hide its error."""
    try:
        log.close()
    except OSError as error:
        LOG.warning("the last metrics are not written file=%s error=%s", location, error)


def _truncate_partial_line(log: Log, name: str) -> None:
    """Truncate the incomplete last line of a killed writer."""
    end = start = log.size()
    found = -1
    while start > 0 and found < 0:
        start, stop = max(start - BLOCK, 0), start
        if end - stop >= LONGEST_TAIL:
            raise UntrustedFileError(f"{name} has no line in its last {LONGEST_TAIL} bytes")
        block = log.read(start, stop)
        if len(block) < stop - start:
            raise OSError(errno.EIO, "the file has become shorter")
        found = block.rfind(b"\n")
    log.truncate(start + found + 1)
