"""Loss on held-out text: the same batches every time, on every mesh, with the arithmetic of training.

Whoever is asked to leave is about to be killed, and an evaluation may take longer than it has. So a world that leaves
begins none and breaks off the one that it is in; the next world makes it before its first step.
"""

from collections.abc import Callable, Collection

from trainingjob_api.data import Evaluation
from trainingjob_api.job import TrainingJobSpec
from trainingjob_trainer.feeding.batches import Batches
from trainingjob_trainer.feeding.index import Index
from trainingjob_trainer.modelling.model import Params
from trainingjob_trainer.modelling.signature import Asked, EvaluateStep
from trainingjob_trainer.modelling.step import Steps
from trainingjob_trainer.programs import Programs

type Ask = Callable[[], Asked]
"""Returns what this process asks for."""
type Tell = Callable[[str], None]
"""Says what this process is about to enter together with all others."""


class Evaluator:
    """Measures the loss on each evaluation's text when it is due, and after the last step."""

    def __init__(
        self, spec: TrainingJobSpec, indexes: dict[str, Index], steps: Steps, programs: Programs, batches: Batches
    ) -> None:
        self._evaluations = spec.evaluation
        self._last = spec.training.steps
        self._indexes = indexes
        self._batches = batches
        self._steps = steps
        self._evaluate: EvaluateStep | None = (  # None: there is nothing to evaluate
            steps.compile_evaluate(programs, batches.shape) if spec.evaluation else None
        )

    def is_due(self, step: int) -> bool:
        """Return whether any evaluation is to be made after a step."""
        return any(self._is_due(evaluation, step) for evaluation in self._evaluations)

    def is_owed(self, step: int, evaluated: Collection[str] | None) -> bool:
        """Return whether an evaluation that is due after a step is not among those that were made of it.

        Of `evaluated` None the step was not saved: who trained it may have evaluated it.
        """
        due = {evaluation.name for evaluation in self._evaluations if self._is_due(evaluation, step)}
        return step > 0 and evaluated is not None and not due.issubset(evaluated)

    def measure(
        self, step: int, params: Params, ask: Ask, tell: Tell
    ) -> dict[str, float] | None:  # None: it was broken off
        """Return the mean loss by name of the evaluations that are due after a step.

        It is broken off, on all processes after the same batch, when any of them asks for something.
        """
        measured: dict[str, float] = {}
        for evaluation in self._evaluations:
            if self._evaluate is None or not self._is_due(evaluation, step):
                continue
            loss = self._measure(evaluation, self._evaluate, params, ask, tell)
            if loss is None:
                return None
            measured[evaluation.name] = loss
        return measured

    def _is_due(self, evaluation: Evaluation, step: int) -> bool:
        return step % evaluation.every_steps == 0 or step == self._last

    def _measure(
        self, evaluation: Evaluation, evaluate: EvaluateStep, params: Params, ask: Ask, tell: Tell
    ) -> float | None:  # None: it was broken off
        index = self._indexes[evaluation.name]
        total = weight = 0.0
        for number in range(self._batches.count_held_out(index, evaluation.num_batches)):
            tell(f"batch {number + 1} of the evaluation `{evaluation.name}`")
            batch = self._batches.held_out(index, number)
            batch_total, batch_weight, asked = evaluate(params, batch, self._steps.controls(ask()).asked)
            if int(asked):
                return None
            total += float(batch_total)
            weight += float(batch_weight)
        return total / weight
