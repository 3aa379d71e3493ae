"""Memory of evaluations: the sequences that a device evaluates at once, and the bytes that it needs for them."""

from collections.abc import Iterator
from dataclasses import dataclass

from trainingjob_api.optim import FLOAT_BYTES
from trainingjob_api.spec.evaluation import Evaluation
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.memory import estimate_device_memory, estimate_workload_memory
from trainingjob_operator.core.planner.mesh import combine_degrees, divisors
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.workload import describe_evaluation


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation at one size. `memory_bytes` are those of a device, an upper bound."""

    name: str
    rows_per_shard: int
    accumulation: int
    memory_bytes: int


def plan_evaluations(spec: TrainingJobSpec, size: SizePlan) -> list[EvaluationPlan]:
    """Return the plan of each evaluation at a size; none if the job cannot train at it."""
    layout = size.layout
    return [_plan_evaluation(spec, layout, evaluation) for evaluation in spec.evaluation] if layout else []


def _plan_evaluation(spec: TrainingJobSpec, layout: Layout, evaluation: Evaluation) -> EvaluationPlan:
    evaluation_layout = layout.for_evaluation(evaluation.max_per_device_batch, spec.sequences_per_example)
    num_bytes = count_evaluation_bytes(spec, evaluation_layout)
    return EvaluationPlan(evaluation.name, evaluation_layout.rows_per_shard, evaluation_layout.accumulation, num_bytes)


def count_evaluation_bytes(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return an upper bound of the bytes of a device that evaluates batches of a layout."""
    degrees = combine_degrees(layout.ici, layout.dcn)
    device, workload = estimate_device_memory(spec, degrees), describe_evaluation(spec)
    forward = estimate_workload_memory(workload, degrees).estimate(layout.rows_per_shard, 0)
    # The hidden states of all microbatches before and after the layers.
    tokens = layout.microbatches * layout.rows_per_shard * workload.length // degrees["context"]
    hidden = 2 * tokens * sum([model.network.width * model.compute_bytes for model in workload.models])
    state = device.params + device.optimizer + count_averaged_bytes(spec, device.gradients)
    return state + forward.activations + forward.temporaries + hidden


def count_averaged_bytes(spec: TrainingJobSpec, gradients: int) -> int:
    """Return the bytes of the averaged parameters that evaluations use; 0 without an average.

    `gradients` are the bytes of the gradients on the same device.
    """
    trained = gradients * FLOAT_BYTES[spec.precision.params] // FLOAT_BYTES[spec.precision.gradients]
    return trained if spec.optimizer.average else 0


def list_smaller_limits(spec: TrainingJobSpec, layout: Layout) -> Iterator[int]:
    """Yield the other numbers of examples that a device can evaluate at once, descending from those of a layout."""
    per_example = spec.sequences_per_example
    examples = layout.accumulation * layout.rows_per_shard // per_example
    yield from (divisor for divisor in reversed(divisors(examples)) if divisor * per_example < layout.rows_per_shard)
