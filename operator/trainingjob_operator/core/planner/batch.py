"""How a batch is cut: into microsteps, these into the microbatches of a pipeline, and these into rows a device.

The batch is the same at every size. It is cut with the least padding first, and then into the fewest microsteps that
`maxPerDeviceBatch` and memory allow.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import RULES
from trainingjob_operator.core.planner.memory import DeviceMemory
from trainingjob_operator.core.planner.mesh import divisors

ENOUGH_ROUNDS = 4
"""Microbatches a stage from which on a pipeline idles little: of S stages less than a fifth of the time."""
MOST_ROUNDS = 16


@dataclass(frozen=True)
class Cut:
    """A batch as one device sees it. `turns` are the steps that a microstep's microbatches take through a pipeline."""

    rows: int
    microbatches: int
    accumulation: int
    padding: int
    """Rows of the whole batch that carry weight zero."""
    turns: int


def split_batch(
    spec: TrainingJobSpec, degrees: Mapping[Axis, int], device: DeviceMemory, memory_bytes: int
) -> Cut | None:  # None: not even one row fits
    """Cut the global batch for a mesh. `memory_bytes` is what a device has; 0 is no limit."""
    shards, stages = math.prod([degrees[axis] for axis in RULES["batch"]]), degrees["stage"]
    batch = spec.training.global_batch_size
    asked = spec.training.max_per_device_batch or batch
    microbatches = _asked_microbatches(spec, stages) or _choose_microbatches(-(-batch // shards), stages)
    turns = _turns(microbatches, stages)
    most_rows = min(asked, device.most_rows(memory_bytes, turns)) if memory_bytes else asked
    if most_rows < 1:
        return None
    # Any multiple at or above the batch would do; the smallest pads least, and one row always divides it.
    rows_a_step = -(-batch // (shards * microbatches))
    fitting = divisors(rows_a_step)
    rows = fitting[bisect_right(fitting, most_rows) - 1]
    return Cut(
        rows=rows,
        microbatches=microbatches,
        accumulation=rows_a_step // rows,
        padding=rows_a_step * microbatches * shards - batch,
        turns=turns,
    )


def fewest_turns(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> int:
    """Return the fewest turns that a pipeline of a mesh can take; 1 without a pipeline."""
    stages = degrees["stage"]
    return _turns(_asked_microbatches(spec, stages) or stages, stages)


def _asked_microbatches(spec: TrainingJobSpec, stages: int) -> int | None:  # None: the planner chooses
    """Return how many microbatches a microstep is to have; without a pipeline it is one, whatever is asked."""
    return spec.parallelism.pipeline.microbatches if stages > 1 else 1


def _turns(microbatches: int, stages: int) -> int:
    return microbatches + stages - 1


def _choose_microbatches(rows: int, stages: int) -> int:
    """Return a multiple of the stages that cuts a shard's rows with the least padding, and idles little."""
    rounds = range(1, max(min(rows // stages, MOST_ROUNDS), 1) + 1)
    best = min(rounds, key=lambda k: (-rows % (k * stages), k < ENOUGH_ROUNDS, abs(k - ENOUGH_ROUNDS)))
    return best * stages
