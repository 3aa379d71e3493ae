"""Batch splitting: into gradient-accumulation steps, pipeline microbatches, and sequences per device.

The global batch is the same at every number of slices. The split first minimizes padding, then takes the fewest
accumulation steps that `maxPerDeviceBatch` and memory allow.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import RULES
from trainingjob_operator.core.planner.memory import DeviceMemory
from trainingjob_operator.core.planner.mesh import divisors, pipeline_ticks

ENOUGH_ROUNDS = 4
"""Microbatches per stage at which the pipeline bubble takes less than a fifth of the time, for any number of stages."""
MOST_ROUNDS = 16


@dataclass(frozen=True)
class Cut:
    """The split of a batch as one device sees it.

    `rows` are sequences per microbatch, `turns` the pipeline ticks of one accumulation step.
    """

    rows: int
    microbatches: int
    accumulation: int
    padding: int
    """Padding sequences of the global batch, with weight zero."""
    turns: int


def split_batch(
    spec: TrainingJobSpec,
    degrees: Mapping[Axis, int],
    device: DeviceMemory,
    memory_bytes: int,
    *,
    keeps_table: bool = True,
) -> Cut | None:  # None: not even one sequence fits
    """Split the global batch for a mesh. `memory_bytes` is the memory of a device; 0 means no limit.

    `keeps_table`: the embedding table stays gathered from one accumulation step to the next.
    """
    shards, stages = math.prod([degrees[axis] for axis in RULES["batch"]]), degrees["stage"]
    batch = spec.training.global_batch_size
    asked = spec.training.max_per_device_batch or batch
    microbatches = _asked_microbatches(spec, stages) or _choose_microbatches(-(-batch // shards), stages)
    turns = pipeline_ticks(microbatches, stages)
    # Any multiple at or above the batch would do. The smallest pads least, and one sequence always divides it.
    rows_a_step = -(-batch // (shards * microbatches))
    most_rows = asked
    if memory_bytes:
        most_rows = min(asked, device.most_rows(memory_bytes, turns, keeps_table=False))
        if most_rows < rows_a_step and keeps_table:  # several accumulation steps
            most_rows = min(asked, device.most_rows(memory_bytes, turns))
    if most_rows < 1:
        return None
    fitting = divisors(rows_a_step)
    rows = fitting[bisect_right(fitting, most_rows) - 1]
    return Cut(
        rows=rows,
        microbatches=microbatches,
        accumulation=rows_a_step // rows,
        padding=rows_a_step * microbatches * shards - batch,
        turns=turns,
    )


def accumulates(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> bool:
    """Return whether microbatches of one sequence take several accumulation steps, with the fewest pipeline ticks."""
    shards, stages = math.prod([degrees[axis] for axis in RULES["batch"]]), degrees["stage"]
    return spec.training.global_batch_size > shards * (_asked_microbatches(spec, stages) or stages)


def fewest_turns(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> int:
    """Return the fewest pipeline ticks of a mesh; 1 without a pipeline."""
    stages = degrees["stage"]
    return pipeline_ticks(_asked_microbatches(spec, stages) or stages, stages)


def _asked_microbatches(spec: TrainingJobSpec, stages: int) -> int | None:  # None: the planner chooses
    """Return the requested number of microbatches per accumulation step. Without a pipeline it is always 1."""
    return spec.parallelism.pipeline.microbatches if stages > 1 else 1


def _choose_microbatches(rows: int, stages: int) -> int:
    """Return a multiple of the stages that minimizes padding first and the pipeline bubble second."""
    rounds = range(1, max(min(rows // stages, MOST_ROUNDS), 1) + 1)
    best = min(rounds, key=lambda k: (-rows % (k * stages), k < ENOUGH_ROUNDS, abs(k - ENOUGH_ROUNDS)))
    return best * stages
