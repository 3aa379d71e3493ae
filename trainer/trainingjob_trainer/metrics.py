"""Metrics files: JSON lines, and TensorBoard event files if enabled.

Only process 0 writes. A step that was trained again after a failure has one line per generation; the highest generation
counts. Lines that a full or failing store rejects are dropped, and training continues.
"""

import errno
import json
import logging
import os
import time
from io import FileIO
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Self

from trainingjob_api.protocol import Progress
from trainingjob_api.running import Metrics
from trainingjob_trainer.board import Board
from trainingjob_trainer.files import ForeignFileError, append_whole, open_appending

LOG = logging.getLogger(__name__)
BLOCK = 1 << 16
LONGEST_TAIL = 64 << 20
"""Maximum bytes after the last complete line. A killed writer leaves a part of a line; a lost node may leave zeros."""
NOT_OF_ALL = ("load_balance", "dropped", "snapshot", "snapshot_seconds", "save_seconds")
"""Metrics that are absent without experts, without snapshots, or before the first save of a world."""


class MetricsWriter:
    """Appends to `<uri>/metrics`. `restored` is the step from which this generation resumes.

    Raises:
        ForeignFileError: a file there is not one of this project.
        OSError: the folder cannot be written.
    """

    def __init__(self, root: Path, metrics: Metrics, generation: int, restored: int) -> None:
        self._every = metrics.every_steps
        self._generation = generation
        folder = root / "metrics"
        folder.mkdir(exist_ok=True)
        self._is_failing = False
        self._lines = open_appending(folder / "metrics.jsonl")
        try:
            _cut_torn_line(self._lines)
            self._board = Board(folder / "tensorboard", restored + 1) if metrics.tensorboard else None
        except BaseException:
            self._lines.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        if self._board:
            self._board.close()

    def write_step(self, progress: Progress, slots: range, *, last: bool) -> None:
        """Write a training step if it is due: a multiple of `everySteps`, or the last.

        `slots` are the sample indices that it used.
        """
        if progress.step % self._every == 0 or last:
            used = {"first_slot": slots[0], "last_slot": slots[-1]}
            absent = {name for name in NOT_OF_ALL if getattr(progress, name) is None}
            measures = progress.model_dump(exclude={"step", "evaluations", *absent})
            self._write(progress.step, measures | used, "train")

    def write_evaluation(self, step: int, name: str, loss: float) -> None:
        """Write a held-out loss."""
        self._write(step, {"evaluation": name, "held_out_loss": loss}, f"held_out/{name}")

    def _write(self, step: int, values: dict[str, float | int | str | None], group: str) -> None:
        finite = {
            name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()
        }
        # The time is for people and plots; no decision depends on it.
        line = {"time": round(time.time(), 3), "generation": self._generation, "step": step, **finite}
        self._append(json.dumps(line).encode() + b"\n")
        if self._board:
            for name, value in finite.items():
                if isinstance(value, float):
                    self._board.add(f"{group}/{name}", value, step)

    def _append(self, line: bytes) -> None:
        try:
            append_whole(self._lines, line)
        except OSError as error:
            if not self._is_failing:
                LOG.warning("metrics cannot be written, training goes on without error=%s", error)
            self._is_failing = True
        else:
            self._is_failing = False


def _cut_torn_line(file: FileIO) -> None:
    """Truncate the incomplete last line of a killed writer."""
    end = start = os.fstat(file.fileno()).st_size
    found = -1
    while start > 0 and found < 0:
        start, stop = max(start - BLOCK, 0), start
        if end - stop >= LONGEST_TAIL:
            raise ForeignFileError(f"metrics.jsonl has no line in its last {LONGEST_TAIL} bytes")
        block = os.pread(file.fileno(), stop - start, start)
        if len(block) < stop - start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        found = block.rfind(b"\n")
    file.truncate(start + found + 1)
