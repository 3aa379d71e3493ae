"""Batch splitting: into gradient-accumulation steps, pipeline microbatches, and sequences per device.

An example is a sequence, or a pair of sequences that stays on one device: the split is one of examples.

The global batch is the same at every number of slices. The split first minimizes padding, then takes the fewest
accumulation steps that `maxPerDeviceBatch` and memory allow.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from trainingjob_api.base import Axis
from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.memory import DeviceMemory
from trainingjob_operator.core.planner.mesh import divisors

TARGET_MICROBATCHES_PER_STAGE = 4
"""Microbatches per stage at which the pipeline bubble takes less than a fifth of the time, for any number of stages."""
MAX_MICROBATCHES_PER_STAGE = 16


@dataclass(frozen=True)
class BatchSplit:
    """The split of a batch as one device sees it.

    `saved_microbatches` counts the microbatches whose activations a device holds at once.
    """

    sequences: int
    microbatches: int
    accumulation: int
    padding: int
    """Padding sequences of the global batch, with weight zero."""
    saved_microbatches: int

    def pad(self, sequences: int) -> "BatchSplit":
        """Return the same split of a batch that is smaller by a number of sequences."""
        return replace(self, padding=self.padding + sequences)


def split_batch(
    spec: TrainingJobSpec,
    degrees: Mapping[Axis, int],
    device: DeviceMemory,
    memory_bytes: int,
    *,
    keeps_table: bool = True,
    global_batch_size: int | None = None,
) -> BatchSplit | None:  # None: not even one example fits
    """Split a global batch for a mesh. `memory_bytes` is the memory of a device; 0 means no limit.

    `global_batch_size`: the largest of the job if it is None.

    `keeps_table`: the embedding table stays gathered from one accumulation step to the next.
    """
    shards, stages = math.prod([degrees[axis] for axis in RULES["batch"]]), degrees["stage"]
    batch, per_example = global_batch_size or spec.training.largest_batch, spec.sequences_per_example
    max_per_device = spec.training.max_per_device_batch or batch
    requested = _requested_microbatches(spec, stages)
    for microbatches in (requested,) if requested else _rank_microbatches(-(-batch // shards), stages):
        saved = spec.parallelism.pipeline.plan(microbatches, stages).saved_microbatches
        fit = partial(device.max_sequences, memory_bytes, saved, microbatches=microbatches)
        # Any multiple at or above the batch would do. The smallest pads least, and one sequence always divides it.
        examples_per_step = -(-batch // (shards * microbatches))
        max_examples = max_per_device
        if memory_bytes:
            fitting = fit(keeps_table=False) // per_example
            max_examples = min(max_per_device, fitting)
            if max_examples < examples_per_step and keeps_table:  # several accumulation steps
                max_examples = min(max_per_device, fit() // per_example)
        if max_examples < 1:
            continue
        parts = divisors(examples_per_step)
        examples = parts[bisect_right(parts, max_examples) - 1]
        return BatchSplit(
            sequences=examples * per_example,
            microbatches=microbatches,
            accumulation=examples_per_step // examples,
            padding=(examples_per_step * microbatches * shards - batch) * per_example,
            saved_microbatches=saved,
        )
    return None


def accumulates(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> bool:
    """Return whether microbatches of one example take several accumulation steps, with the fewest microbatches."""
    shards, stages = math.prod([degrees[axis] for axis in RULES["batch"]]), degrees["stage"]
    return spec.training.largest_batch > shards * (_requested_microbatches(spec, stages) or stages)


def plan_fewest_microbatches(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> PipelineSchedule:
    """Return the schedule of a mesh with the fewest microbatches; 1 without a pipeline."""
    stages = degrees["stage"]
    return spec.parallelism.pipeline.plan(_requested_microbatches(spec, stages) or stages, stages)


def _requested_microbatches(spec: TrainingJobSpec, stages: int) -> int | None:  # None: the planner chooses
    """Return the requested number of microbatches per accumulation step. Without a pipeline it is always 1."""
    return spec.parallelism.pipeline.microbatches if stages > 1 else 1


def _rank_microbatches(rows: int, stages: int) -> list[int]:
    """Return multiples of the stages, best first: less padding, then a smaller pipeline bubble.

    A device holds the activations of more microbatches at once, so that a worse number may be the best that fits.
    """
    rounds = range(1, max(min(rows // stages, MAX_MICROBATCHES_PER_STAGE), 1) + 1)
    ranked = sorted(
        rounds,
        key=lambda k: (-rows % (k * stages), k < TARGET_MICROBATCHES_PER_STAGE, abs(k - TARGET_MICROBATCHES_PER_STAGE)),
    )
    return [k * stages for k in ranked]
