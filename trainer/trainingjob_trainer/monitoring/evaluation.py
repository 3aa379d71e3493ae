"""Scores on held-out text, with the arithmetic of training.

The batches are the same at every evaluation and on every mesh. A process that receives EXIT may be killed before an
evaluation ends. A world that leaves therefore starts no evaluation and interrupts a running one. The next world runs
that evaluation before its first step.
"""

from collections.abc import Callable, Collection, Mapping

from trainingjob_api.spec.evaluation import Evaluation
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.monitoring.evaluate_programs import EvaluateProgram
from trainingjob_trainer.objectives.scoring import Scores, ScoreSums, add_sums
from trainingjob_trainer.state import Signal
from trainingjob_trainer.step import StepPrograms

type SignalSource = Callable[[], Signal]
"""Returns the control signals of this process."""
type EntryReporter = Callable[[str], None]
"""Reports the operation that this process is about to enter together with all others."""


class Evaluator:
    """Measures the scores of each evaluation when it is due, and after the last step.

    `programs` are those of the evaluations, by the name of the evaluation.
    """

    def __init__(
        self,
        spec: TrainingJobSpec,
        indexes: dict[str, TokenDataset],
        steps: StepPrograms,
        programs: Mapping[str, EvaluateProgram],
        batches: BatchLoader,
    ) -> None:
        self._evaluations = spec.evaluation
        self._last_step = spec.training.steps
        self._stop = spec.training.stop_at_loss
        best = spec.checkpoint.keep.best
        self._deciding = {choice.evaluation for choice in (self._stop, best) if choice}
        self._indexes = indexes
        self._batches = batches
        self._steps = steps
        self._programs = programs

    def is_due(self, step: int) -> bool:
        """Return whether any evaluation is due after a step."""
        return any(self._is_due(evaluation, step) for evaluation in self._evaluations)

    def is_missing(self, step: int, evaluated: Collection[str] | None) -> bool:
        """Return whether an evaluation that is due after a step is missing from those that ran.

        `evaluated` is None if the step was not saved. The world that trained it may have ended before its evaluation.
        Only the evaluations whose loss decides what happens are then missing: those of the last step, and those that
        end training or rank the best checkpoints.
        """
        due = {evaluation.name for evaluation in self._evaluations if self._is_due(evaluation, step)}
        if step == 0:
            return False
        if evaluated is None:
            return bool(due if step == self._last_step else due & self._deciding)
        return not due.issubset(evaluated)

    def ends_training(self, losses: Mapping[str, float]) -> bool:
        """Return whether training ends after a step with these held-out losses."""
        return self._stop is not None and self._stop.is_reached(losses)

    def measure(
        self,
        step: int,
        params: Params,
        signals: SignalSource,
        report_entry: EntryReporter,
        reference: Params | None = None,
    ) -> dict[str, Scores] | None:  # None: it was interrupted
        """Return the scores of each evaluation that is due after a step, by name.

        `reference` is that of the state, or the parameters of the teacher.

        A signal from any process interrupts the evaluation, on all processes after the same batch.
        """
        measured: dict[str, Scores] = {}
        for evaluation in self._evaluations:
            if not self._is_due(evaluation, step):
                continue
            scores = self._measure(evaluation, (params, reference), signals, report_entry)
            if scores is None:
                return None
            measured[evaluation.name] = scores
        return measured

    def _is_due(self, evaluation: Evaluation, step: int) -> bool:
        return step % evaluation.every_steps == 0 or step == self._last_step

    def _measure(
        self,
        evaluation: Evaluation,
        models: tuple[Params, Params | None],
        signals: SignalSource,
        report_entry: EntryReporter,
    ) -> Scores | None:  # None: it was interrupted
        index, (params, reference) = self._indexes[evaluation.name], models
        program = self._programs[evaluation.name]
        totals: ScoreSums | None = None
        for number in range(self._batches.count_held_out(index, evaluation.num_batches)):
            report_entry(f"batch {number + 1} of the evaluation `{evaluation.name}`")
            batch = self._batches.held_out_batch(index, number, shape=program.shape)
            sums, combined_signals = program.run(params, batch, self._steps.signals(signals()), reference)
            if int(combined_signals):
                return None
            totals = add_sums(totals, sums)
        assert totals is not None  # noqa: S101  # each text has a batch
        return Scores.from_sums(totals)
