"""Loss on held-out text: the same batches every time, on every mesh, with the arithmetic of training."""

from trainingjob_api.data import Evaluation
from trainingjob_api.job import TrainingJobSpec
from trainingjob_trainer.batches import Batches
from trainingjob_trainer.index import Index
from trainingjob_trainer.model import Params
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.signature import EvaluateStep
from trainingjob_trainer.step import Steps


class Evaluator:
    """Measures the loss on each evaluation's text when it is due, and after the last step."""

    def __init__(
        self, spec: TrainingJobSpec, indexes: dict[str, Index], steps: Steps, programs: Programs, batches: Batches
    ) -> None:
        self._evaluations = spec.evaluation
        self._last = spec.training.steps
        self._indexes = indexes
        self._batches = batches
        self._evaluate: EvaluateStep | None = (  # None: there is nothing to evaluate
            steps.compile_evaluate(programs, batches.shape) if spec.evaluation else None
        )

    def is_due(self, step: int) -> bool:
        """Return whether any evaluation is to be made after a step."""
        return any(self._is_due(evaluation, step) for evaluation in self._evaluations)

    def measure(self, step: int, params: Params) -> dict[str, float]:
        """Return the mean loss by name of the evaluations that are due after a step."""
        if self._evaluate is None:
            return {}
        return {
            evaluation.name: self._measure(evaluation, self._evaluate, params)
            for evaluation in self._evaluations
            if self._is_due(evaluation, step)
        }

    def _is_due(self, evaluation: Evaluation, step: int) -> bool:
        return step % evaluation.every_steps == 0 or step == self._last

    def _measure(self, evaluation: Evaluation, evaluate: EvaluateStep, params: Params) -> float:
        index = self._indexes[evaluation.name]
        total = weight = 0.0
        for number in range(self._batches.count_held_out(index, evaluation.num_batches)):
            batch_total, batch_weight = evaluate(params, self._batches.held_out(index, number))
            total += float(batch_total)
            weight += float(batch_weight)
        return total / weight
