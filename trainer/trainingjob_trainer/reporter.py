"""Reports of the trainer: each step and phase to the agent, and due steps to the metrics files."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import jax

from trainingjob_api.protocol import LATELY_STEPS, Phase, Progress
from trainingjob_trainer.events import Events
from trainingjob_trainer.failures import foreign_error, storage_error
from trainingjob_trainer.feeding.rows import Sizes, Skipped, slots_of_step
from trainingjob_trainer.files import ForeignFileError
from trainingjob_trainer.metrics import RECENT_LINES, Line, MetricsWriter, describe_step
from trainingjob_trainer.modelling.signature import Asked, Measures
from trainingjob_trainer.protection import check_step, is_skipped
from trainingjob_trainer.remembering.snapshots import Snapshots
from trainingjob_trainer.stalls import Stalls
from trainingjob_trainer.wire import Event, Start

LOG = logging.getLogger(__name__)
FEW_STEPS, MANY_STEPS = 5, 32
"""Minimum steps for a typical step time, and the number of newest steps that are considered."""


class Reporter:
    """Reads step metrics and reports them. Process 0 also writes them to files.

    `recent` are the newest metrics lines of the world that took the restored snapshot.

    Raises:
        TrainingError: the metrics folder cannot be written, or holds something else.
    """

    def __init__(
        self,
        start: Start,
        events: Events,
        root: Path,
        *,
        restored: int,
        snapshots: Snapshots | None = None,
        stalls: Stalls | None = None,
        skipped: Skipped = (),
        sizes: Sizes | None = None,
        recent: Sequence[Line] = (),
    ) -> None:
        training = start.config.spec.training
        self._events = events
        self._snapshots = snapshots
        self._stalls = stalls
        self._tokens = training.global_batch_size * training.sequence_length
        self._last = training.steps
        self._every = start.config.spec.metrics.every_steps
        self._generation = start.world.generation
        self._recent: deque[Line] = deque(maxlen=RECENT_LINES)
        self._sizes = sizes or ((1, training.global_batch_size),)
        self._skipped = skipped
        self._protection = start.config.spec.protection
        self._newest: Progress | None = None
        self._evaluations: dict[str, float] = {}
        self._save_seconds: float | None = None
        self._since = time.monotonic()
        self._seconds: deque[float] = deque(maxlen=MANY_STEPS)
        self._waits: deque[float] = deque(maxlen=MANY_STEPS)
        self._skips: deque[bool] = deque(maxlen=LATELY_STEPS)
        self._open = ExitStack()
        self._writer: MetricsWriter | None = None
        if start.process == 0:
            try:
                writer = MetricsWriter(root, start.config.spec.metrics, start.world.generation, restored)
            except OSError as error:
                raise storage_error(error, f"opening {root / 'metrics'}", str(root)) from error
            except ForeignFileError as error:
                raise foreign_error(error, root / "metrics", str(root)) from error
            self._writer = self._open.enter_context(writer)
            self._writer.recover(recent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def resume(self, phase: Phase) -> None:
        """Report that a phase begins, and restart the step timer.

        After SAVING, the elapsed time is recorded as the time for which the save blocked training.
        """
        now = time.monotonic()
        if self._events.phase is Phase.SAVING:
            self._save_seconds = now - self._since
        self._since = now
        self._events.enter(phase)

    def begin(self, name: str) -> None:
        """Report that this process is about to enter an operation that needs all processes."""
        self._events.join(name)

    def report(self, step: int, measures: Measures) -> Asked:
        """Wait for a step's metrics and report them; return the signals that any process sent with the step.

        Raises:
            TrainingError: training must not continue after the step.
        """
        begun = time.monotonic()
        loss = float(measures.loss)  # waits for the device, which waits for all other hosts
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self._seconds.append(seconds)
        self._waits.append(now - begun)
        self._skips.append(is_skipped(measures))
        progress = Progress(
            step=step,
            loss=loss if isfinite(loss) else None,
            grad_norm=_read(measures.grad_norm),
            learning_rate=float(measures.learning_rate),
            tokens_per_second=self._tokens / max(seconds, 1e-9),
            step_seconds=seconds,
            typical_seconds=median(self._seconds) if len(self._seconds) >= FEW_STEPS else None,
            wait_seconds=median(self._waits) if len(self._waits) == MANY_STEPS else None,
            stalled_share=self._stalls.share if self._stalls else None,
            evaluations=self._evaluations,
            load_balance=_read(measures.load_balance),
            dropped=_read(measures.dropped),
            skipped=int(measures.skipped),
            skipped_lately=sum(self._skips),
            save_seconds=self._save_seconds,
            **self._describe_snapshot(),
        )
        self._newest = progress
        self._events.send(Event(progress=progress))
        self._write(progress)
        check_step(step, measures, self._protection, sum(self._skips))
        return Asked(int(measures.asked))

    def report_evaluations(self, step: int, losses: dict[str, float]) -> None:
        """Report held-out losses with the newest step's metrics: after the last step there are no other metrics."""
        self._evaluations = {**self._evaluations, **{name: loss for name, loss in losses.items() if isfinite(loss)}}
        for name, loss in losses.items():
            LOG.info("evaluated step=%d evaluation=%s loss=%.4f", step, name, loss)
            if self._writer:
                self._writer.write_evaluation(step, name, loss)
        if self._newest:
            self._events.send(Event(progress=self._newest.model_copy(update={"evaluations": self._evaluations})))

    def _describe_snapshot(self) -> dict[str, Any]:
        if not (self._snapshots and self._snapshots.newest):
            return {}
        return {"snapshot": self._snapshots.newest, "snapshot_seconds": self._snapshots.seconds}

    def _write(self, progress: Progress) -> None:
        """Write a step's metrics if this is process 0, and keep them with the next snapshot."""
        slots = slots_of_step(progress.step, self._sizes, self._skipped)
        used = range(int(slots[0]), int(slots[-1]) + 1)
        line = describe_step(progress, used, self._every, self._generation, last=progress.step == self._last)
        if line and self._writer:
            self._writer.write_step(line)
        if line and self._snapshots:
            self._recent.append(line)
            self._snapshots.metrics = tuple(self._recent)


def _read(measure: jax.Array | None) -> float | None:  # None: the metric is absent or not finite
    value = float("nan") if measure is None else float(measure)
    return value if isfinite(value) else None
