"""Rules about the batches of evaluations."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.evaluation_memory import count_evaluation_bytes, list_smaller_limits
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.memory import USABLE_MEMORY_SHARE
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import SizeOutcomes, find_slice_shape
from trainingjob_operator.core.units import format_size, pluralize
from trainingjob_operator.core.validation.rule import SizesRule
from trainingjob_operator.core.validation.validate_sizes import SIZE_FIELDS


def check_evaluation_memory(spec: TrainingJobSpec, sizes: SizeOutcomes, hardware: Hardware) -> Iterator[Problem]:
    """A device must have memory for `evaluation[].maxPerDeviceBatch` sequences, if they are more than in training."""
    shape = find_slice_shape(spec, hardware)
    if shape is None or not shape.memory_bytes:
        return
    usable = int(shape.memory_bytes * USABLE_MEMORY_SHARE)
    layouts = [size.layout for size in sizes.values() if isinstance(size, SizePlan) and size.layout]
    for number, max_batch in enumerate(evaluation.max_per_device_batch for evaluation in spec.evaluation):
        planned = ((layout, layout.for_evaluation(max_batch, spec.sequences_per_example)) for layout in layouts)
        for layout, evaluation_layout in planned:
            if evaluation_layout.rows_per_shard <= layout.rows_per_shard:
                continue
            if (need := count_evaluation_bytes(spec, evaluation_layout)) > usable:
                sequences = pluralize(evaluation_layout.rows_per_shard, "sequence")
                message = (
                    f"{max_batch} lets a {shape.device_noun} evaluate {sequences} at once on "
                    f"{pluralize(layout.num_slices, 'slice')}. They need about {format_size(need)}, and must fit in "
                    f"the {format_size(usable)} of its usable memory."
                )
                nearest = str(_find_limit(spec, layout, evaluation_layout, usable))
                yield Problem(f"spec.evaluation[{number}].maxPerDeviceBatch", max_batch, message, (nearest,))
                break


def _find_limit(spec: TrainingJobSpec, layout: Layout, evaluation_layout: Layout, usable: int) -> int:
    """Return the most examples at once that fit: those of a training step, if the estimate of no number fits."""
    per_example = spec.sequences_per_example
    fitting = (
        limit
        for limit in list_smaller_limits(spec, evaluation_layout)
        if count_evaluation_bytes(spec, evaluation_layout.for_evaluation(limit, per_example)) <= usable
    )
    return next(fitting, layout.rows_per_shard // per_example)


SIZES_RULES = (SizesRule((*SIZE_FIELDS, "evaluation"), check_evaluation_memory),)
