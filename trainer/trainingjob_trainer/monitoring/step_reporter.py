"""Reports of the trainer: each step and phase to the agent, and due steps to the metrics files."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import isfinite, isnan
from statistics import median
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from trainingjob_agent.shared_files import UntrustedFileError
from trainingjob_agent.trainer_protocol import AgentEvent, StartWorld
from trainingjob_api.decoding import find_decoding_shape
from trainingjob_api.protocol import RECENT_STEPS, Phase, Progress
from trainingjob_api.spec.training import BatchSizes
from trainingjob_api.status.progress_status import EvaluationScores
from trainingjob_trainer.data.sampler import samples_of_step, size_of_step
from trainingjob_trainer.monitoring.bad_steps import check_step, is_skipped
from trainingjob_trainer.monitoring.scheduling_delay import SchedulingDelayMonitor
from trainingjob_trainer.objectives.scoring import Scores
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import foreign_error, storage_error
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.state import Signal, StepMetrics
from trainingjob_trainer.store.port import Store
from trainingjob_trainer.trackers.metrics_file import RECENT_LINES, Line, MetricsWriter, TextOfPrompt, describe_step
from trainingjob_trainer.trackers.round_metrics import RoundMetrics
from trainingjob_trainer.trackers.tracker import FOLDER, Run

LOG = logging.getLogger(__name__)
MIN_TYPICAL_STEPS, WINDOW_STEPS = 5, 32
"""Minimum steps for a typical step time, and the number of newest steps that are considered."""

type SampleSource = Callable[[int], np.ndarray]
"""Returns the sample indices of a step, ascending."""


class StepReporter:
    """Reads step metrics and reports them. Process 0 also writes them to files, for a replica at the end of a round.

    `samples` returns the sample indices of a step. None: no sample is excluded, and all batches are full. `recent` are
    the newest metrics lines of the world that took the restored snapshot.

    Raises:
        TrainingError: the metrics folder cannot be written, or holds something else.
    """

    def __init__(
        self,
        start: StartWorld,
        events: AgentEvents,
        store: Store,
        *,
        restored: int,
        snapshots: Snapshots | None = None,
        stalls: SchedulingDelayMonitor | None = None,
        samples: SampleSource | None = None,
        sizes: BatchSizes | None = None,
        recent: Sequence[Line] = (),
    ) -> None:
        spec, training = start.config.spec, start.config.spec.training
        self._events = events
        self._store = store
        self._snapshots = snapshots
        self._scheduling_delay = stalls
        self._tokens_per_example = spec.sequences_per_example * training.sequence_length
        replication = start.world.replication
        self._num_shares = replication.slices_max if replication else 1
        self._last_step = training.steps
        self._every = spec.metrics.every_steps
        self._generation = start.world.generation
        self._recent: deque[Line] = deque(maxlen=RECENT_LINES)
        self._sizes = sizes or training.batch_sizes
        self._samples = samples or partial(samples_of_step, sizes=self._sizes)
        self._protection = spec.protection
        self._newest: Progress | None = None
        self._evaluations: dict[str, float] = {}
        self._scores: dict[str, EvaluationScores] = {}
        self._save_seconds: float | None = None
        self._timer_start = time.monotonic()
        self._step_times: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._wait_times: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._load_times: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._dropped_steps = 0
        self._skips: deque[bool] = deque(maxlen=RECENT_STEPS)
        self._untrained: deque[bool] = deque(maxlen=RECENT_STEPS)
        self._open = ExitStack()
        self._writer: MetricsWriter | RoundMetrics | None = None
        if start.process == 0:
            try:
                run = Run(start.config.job, store, restored)
                has_samples = find_decoding_shape(spec) is not None
                kind: Callable[..., MetricsWriter | RoundMetrics] = RoundMetrics if replication else MetricsWriter
                writer = kind(spec.metrics, run, start.world.generation, has_samples=has_samples)
            except OSError as error:
                raise storage_error(error, f"opening {store.locate(FOLDER)}", store.root) from error
            except UntrustedFileError as error:
                raise foreign_error(error, store.locate(FOLDER), store.root) from error
            self._writer = writer
            self._open.enter_context(writer)
            if isinstance(writer, MetricsWriter):
                writer.recover(recent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def enter_phase(self, phase: Phase) -> None:
        """Report that a phase begins, and restart the step timer.

        After SAVING, the elapsed time is recorded as the time for which the save blocked training.
        """
        now = time.monotonic()
        if self._events.phase is Phase.SAVING:
            self._save_seconds = now - self._timer_start
        if phase is Phase.SAVING and self._writer:
            self._writer.flush()  # no world repeats the steps before a save
        if phase is Phase.TRAINING and isinstance(self._writer, RoundMetrics):
            self._writer.begin_round()
        self._timer_start = now
        self._events.enter_phase(phase)

    def report_entry(self, name: str) -> None:
        """Report that this process is about to enter an operation that needs all processes."""
        self._events.report_entry(name)

    @contextmanager
    def loading_batch(self) -> Iterator[None]:
        """Measure the time for which this process loads the batch of a step."""
        start = time.monotonic()
        yield
        self._load_times.append(time.monotonic() - start)

    def report(self, step: int, step_metrics: StepMetrics) -> Signal:
        """Wait for a step's metrics and report them; return the signals that any process sent with the step.

        Raises:
            TrainingError: training must not continue after the step.
        """
        start = time.monotonic()
        loss = float(step_metrics.loss)  # waits for the device, which waits for all other hosts
        now = time.monotonic()
        seconds, self._timer_start = now - self._timer_start, now
        if any(first == step for first, _ in self._sizes):
            self._step_times.clear()  # steps of another batch size take another time
            self._wait_times.clear()
            self._load_times.clear()
        self._step_times.append(seconds)
        self._wait_times.append(now - start)
        self._skips.append(is_skipped(step_metrics))
        # No limit counts a batch without a loss or a gradient. But a job that has no other batches trains nothing.
        trains_nothing = isnan(loss) or float(step_metrics.grad_norm) == 0
        self._untrained.append(trains_nothing and not self._skips[-1])
        batch_size = size_of_step(step, self._sizes)
        progress = Progress(
            step=step,
            loss=loss if isfinite(loss) else None,
            grad_norm=_finite_or_none(step_metrics.grad_norm),
            learning_rate=float(step_metrics.learning_rate),
            tokens_per_second=batch_size * self._tokens_per_example // self._num_shares / max(seconds, 1e-9),
            step_seconds=seconds,
            typical_seconds=median(self._step_times) if len(self._step_times) >= MIN_TYPICAL_STEPS else None,
            wait_seconds=median(self._wait_times) if len(self._wait_times) == WINDOW_STEPS else None,
            load_seconds=median(self._load_times) if len(self._load_times) == WINDOW_STEPS else None,
            stalled_share=self._scheduling_delay.delayed_share if self._scheduling_delay else None,
            evaluations=self._evaluations,
            scores=self._scores,
            skipped=int(step_metrics.skipped),
            skipped_lately=sum(self._skips) + sum(self._untrained),
            save_seconds=self._save_seconds,
            dropped_steps=self._dropped_steps,
            **_report_objective(step_metrics),
            **self._describe_snapshot(),
        )
        self._newest = progress
        self._events.send(AgentEvent(progress=progress))
        self._write(progress)
        if step_metrics.norms is not None and self._writer:
            self._writer.write_norms(step, {name: float(norm) for name, norm in step_metrics.norms.items()})
        check_step(step, step_metrics, self._protection, sum(self._skips))
        return Signal(int(step_metrics.signals))

    def report_evaluations(self, step: int, measured: dict[str, Scores]) -> None:
        """Report held-out scores with the newest step's metrics: after the last step there are no other metrics."""
        finite = {name: scores for name, scores in measured.items() if isfinite(scores.loss)}
        self._evaluations |= {name: scores.loss for name, scores in finite.items()}
        self._scores |= {
            name: EvaluationScores(accuracy=scores.accuracy, bits_per_byte=scores.bits_per_byte)
            for name, scores in finite.items()
        }
        for name, scores in measured.items():
            description = " ".join(f"{key}={score:.4f}" for key, score in scores.by_name().items())
            LOG.info("evaluated step=%d evaluation=%s %s", step, name, description)
            if self._writer:
                self._writer.write_evaluation(step, name, scores.by_name())
        if self._newest:
            update = {"evaluations": self._evaluations, "scores": self._scores}
            self._events.send(AgentEvent(progress=self._newest.model_copy(update=update)))

    def end_round(self, *, is_writer: bool) -> None:
        """Write the metrics of a round of replicas, if this one does it.

        Raises:
            TrainingError: the metrics folder holds something else.
        """
        if isinstance(self._writer, RoundMetrics):
            try:
                self._writer.end_round(is_writer=is_writer)
            except UntrustedFileError as error:
                raise foreign_error(error, self._store.locate(FOLDER), self._store.root) from error

    def report_dropped(self, num_steps: int) -> None:
        """Report that no other replica received the newest steps of this one."""
        self._dropped_steps += num_steps
        if self._newest:
            self._newest = self._newest.model_copy(update={"dropped_steps": self._dropped_steps})
            self._events.send(AgentEvent(progress=self._newest))

    def report_samples(self, step: int, samples: Sequence[TextOfPrompt]) -> None:
        """Log the texts that the model wrote after a step, and write them to files."""
        for sample in samples:
            LOG.info(
                "sampled step=%d evaluation=%s prompt=%r text=%r", step, sample.evaluation, sample.prompt, sample.text
            )
            if self._writer:
                self._writer.write_sample(step, sample)

    def _describe_snapshot(self) -> dict[str, Any]:
        if not (self._snapshots and self._snapshots.newest):
            return {}
        return {"snapshot": self._snapshots.newest, "snapshot_seconds": self._snapshots.seconds}

    def _write(self, progress: Progress) -> None:
        """Write a step's metrics if this is process 0, and keep them with the next snapshot."""
        slots = self._samples(progress.step)
        used = range(int(slots[0]), int(slots[-1]) + 1)
        line = describe_step(progress, used, self._every, self._generation, last=progress.step == self._last_step)
        if line and self._writer:
            self._writer.write_step(line)
        if line and self._snapshots:
            self._recent.append(line)
            self._snapshots.metrics = tuple(self._recent)


def _report_objective(step_metrics: StepMetrics) -> dict[str, Any]:
    """Return the metrics of the objective, which are fields of `Progress`."""
    return {name: _finite_or_none(metric) for name, metric in step_metrics.objective.items()}


def _finite_or_none(measure: jax.Array) -> float | None:  # None: the metric is not finite
    value = float(measure)
    return value if isfinite(value) else None
