"""Metrics of a replica: the lines of a round, which one member of the round writes at its end.

A member may be lost before the round ends, and its steps are then in no record. A store without append replaces the
whole file, so that two processes must not have it open at the same time. Each writer therefore closes the file before
it contributes to the next round, and another replica opens it only after the end of that round.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from trainingjob_api.spec.metrics import Metrics
from trainingjob_trainer.trackers.metrics_file import Line, MetricsWriter, TextOfPrompt
from trainingjob_trainer.trackers.tracker import Run, TrackerThread, close_trackers, open_trackers

LOG = logging.getLogger(__name__)


class KeptLine(NamedTuple):
    """A line of a step, as a call of its writer."""

    step: int
    write: Callable[[MetricsWriter], None]


class RoundMetrics:
    """Keeps the lines of a replica until its round ends. It writes them if the replica is the one that saves the round.

    Trackers stay open while this replica writes each round. They close once another one writes: of two that are open,
    one would hide the points of the other, or mix them.

    Raises:
        UntrustedFileError: a file of metrics or of a tracker is not one of this project.
        OSError: the store does not respond.
    """

    def __init__(self, metrics: Metrics, run: Run, generation: int, *, has_samples: bool = False) -> None:
        self._metrics = metrics
        self._run = run
        self._generation = generation
        self._has_samples = has_samples
        self._kept: list[KeptLine] = []
        self._is_round_over = False
        self._writer: MetricsWriter | None = None  # None: the round is not over, or another replica writes it
        self._trackers: list[TrackerThread] | None = None  # None: this replica did not write the newest round
        self._closing: list[TrackerThread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.begin_round()
        close_trackers([*self._closing, *(self._trackers or ())])

    def begin_round(self) -> None:
        """Close the files: another replica may write the next round."""
        self._is_round_over = False
        if self._writer:
            self._writer.__exit__(None, None, None)
            self._writer = None

    def end_round(self, *, is_writer: bool) -> None:
        """Write the lines of a round if this replica is its writer; drop them otherwise."""
        kept, self._kept, self._is_round_over = self._kept, [], True
        if not is_writer:
            self._begin_close_trackers()
            return
        try:
            self._writer = self._open(kept)
        except OSError as error:
            LOG.warning("the metrics of a round are not written error=%s", error)
            return
        for line in kept:
            line.write(self._writer)

    def flush(self) -> None:
        """Begin to write the lines that a store without append still lacks."""
        if self._writer:
            self._writer.flush()

    def write_step(self, line: Line) -> None:
        """Write the line of a training step."""
        self._add(line["step"], lambda writer: writer.write_step(line))

    def write_norms(self, step: int, norms: Mapping[str, float]) -> None:
        """Write the norms of tensors, their gradients and their updates."""
        self._add(step, lambda writer: writer.write_norms(step, norms))

    def write_evaluation(self, step: int, name: str, scores: Mapping[str, float]) -> None:
        """Write the scores of an evaluation. All replicas evaluate the same parameters at the end of a round."""
        self._add(step, lambda writer: writer.write_evaluation(step, name, scores))

    def write_sample(self, step: int, sample: TextOfPrompt) -> None:
        """Write a text that the model wrote."""
        self._add(step, lambda writer: writer.write_sample(step, sample))

    def _add(self, step: int, write: Callable[[MetricsWriter], None]) -> None:
        if not self._is_round_over:
            self._kept.append(KeptLine(step, write))
        elif self._writer:
            write(self._writer)

    def _begin_close_trackers(self) -> None:
        """Close the trackers in their threads: the next round must not wait for a slow one."""
        for tracker in self._trackers or ():
            tracker.begin_close()
        self._closing = [tracker for tracker in (*self._closing, *(self._trackers or ())) if not tracker.is_closed]
        self._trackers = None

    def _open(self, kept: Sequence[KeptLine]) -> MetricsWriter:
        if self._trackers is None:  # they show the steps that other replicas wrote before the first one of these
            before = min((line.step for line in kept), default=self._run.restored + 1) - 1
            self._trackers = open_trackers(self._metrics, self._run._replace(restored=before))
        return MetricsWriter(
            self._metrics, self._run, self._generation, has_samples=self._has_samples, trackers=self._trackers
        )
