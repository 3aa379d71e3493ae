"""Rules about values that change at given steps: weights of training sources, and batch sizes."""

from collections.abc import Iterator, Sequence

from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import WeightPhase
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.training import MAX_BATCH_SIZE, MAX_STEP, BatchPhase
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation.rule import Rule

WEIGHTS = "spec.data.weightSchedule"
BATCHES = "spec.training.batchSchedule"


def check_weight_steps(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`data.weightSchedule` must ascend by `fromStep`."""
    return _check_ascending(WEIGHTS, spec.data.weight_schedule)


def check_batch_steps(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`training.batchSchedule` must ascend by `fromStep`."""
    return _check_ascending(BATCHES, spec.training.batch_schedule)


def _check_ascending(schedule: str, phases: Sequence[WeightPhase | BatchPhase]) -> Iterator[Problem]:
    before = 0
    for number, phase in enumerate(phases):
        if phase.from_step <= before:
            message = f"{phase.from_step} must be greater than {before}, the first step of the previous phase."
            nearest = (str(before + 1),) if before < MAX_STEP else ()
            yield Problem(f"{schedule}[{number}].fromStep", phase.from_step, message, nearest)
        before = max(before, phase.from_step)


def check_growing_batches(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each batch size of `training.batchSchedule` must be larger than the one before."""
    largest = spec.training.global_batch_size
    for number, phase in enumerate(spec.training.batch_schedule):
        batch = phase.global_batch_size
        if batch <= largest:
            message = (
                f"{batch} must be greater than {largest}, the batch size before it. Batches can only grow; a new job "
                "may continue the checkpoint with a smaller one."
            )
            nearest = (str(min(2 * largest, MAX_BATCH_SIZE)),) if largest < MAX_BATCH_SIZE else ()
            yield Problem(f"{BATCHES}[{number}].globalBatchSize", batch, message, nearest)
        largest = max(largest, batch)


def warn_of_unreached_weights(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A phase of `data.weightSchedule` after `training.steps` has no effect."""
    return _warn_of_unreached(WEIGHTS, spec.data.weight_schedule, spec.training.step_limit)


def warn_of_unreached_batches(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A phase of `training.batchSchedule` after `training.steps` has no effect."""
    return _warn_of_unreached(BATCHES, spec.training.batch_schedule, spec.training.step_limit)


def _warn_of_unreached(schedule: str, phases: Sequence[WeightPhase | BatchPhase], steps: int) -> Iterator[Problem]:
    for number, phase in enumerate(phases):
        if phase.from_step > steps:
            message = has_no_effect(f"it exceeds {quote_field('spec.training.steps', steps)}", str(phase.from_step))
            yield Problem(f"{schedule}[{number}].fromStep", phase.from_step, message)


RULES = (
    Rule(("data.weightSchedule",), check_weight_steps),
    Rule(("training.batchSchedule",), check_batch_steps),
    Rule(("training.globalBatchSize", "training.batchSchedule"), check_growing_batches),
)
WARNINGS = (
    Rule(("data.weightSchedule", "training.steps"), warn_of_unreached_weights),
    Rule(("training.batchSchedule", "training.steps"), warn_of_unreached_batches),
)
