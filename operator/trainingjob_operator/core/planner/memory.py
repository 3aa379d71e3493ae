"""Memory of a device, from the spec alone.

Assumptions about this project's trainer: gradients are accumulated in float32, the two Adam moments are float32, and
attention saves its scores. The parameters of one layer are gathered at a time. The output projection is gathered for
the logits. The embedding table stays gathered while more accumulation steps follow.

Memory peaks at one of two points: at the logits, or in the first layer of the backward pass. Both come on top of the
residuals of all layers. A test compares these numbers with XLA's memory analysis of compiled steps, see
tests/golden/compiler.json.

Shapes: L length, D model width, H query heads, G key and value heads, K head width, F MLP width, V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import RULES, Ways, count_ways, merge_rules
from trainingjob_operator.core.planner.parameters import list_leaves, split_size
from trainingjob_operator.core.planner.plan import MemoryEstimate
from trainingjob_operator.core.planner.workload import FLOAT32, Workload, describe_workload

USABLE = 0.92
"""Usable share of a device's memory. The runtime, compiled code and fragmentation take the rest."""


PIPELINED = 12
"""Memory of a pipeline stage, in tenths of the residuals of its layers. The two extra tenths are copies in the loop
over pipeline ticks, as measured on TPU."""
PIECES = 4
"""Pieces of the output projection's gradient that are in flight during its reduce-scatter over devices."""


@dataclass(frozen=True)
class Moment:
    """Temporary bytes at one of the two points where memory peaks: a fixed part, and a part per sequence."""

    fixed: int
    per_row: int


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device, as a function of its sequences per microbatch."""

    params: int
    gradients: int
    optimizer: int
    kept_per_row: int
    """Residuals that all layers save for the backward pass, per sequence."""
    table: int
    """The gathered embedding table. It stays allocated while more accumulation steps follow, if `data` has degree 1 or
    the platform is `cpu`."""
    layers: int
    """The gathered matrices of all layers of a stage. Only one layer is gathered at a time."""
    head: int
    """The gathered output projection."""
    logits_per_row: int
    moments: tuple[Moment, ...]

    def estimate(self, rows: int, turns: int, *, keeps_table: bool = True) -> MemoryEstimate:
        """Return the bytes for `rows` sequences. A pipeline keeps the residuals of all its ticks."""
        return MemoryEstimate(
            params=self.params,
            gradients=self.gradients,
            optimizer=self.optimizer,
            activations=turns * rows * self.kept_per_row,
            temporaries=self.table * keeps_table + max([one.fixed + rows * one.per_row for one in self.moments]),
        )

    def most_rows(self, memory_bytes: int, turns: int, *, keeps_table: bool = True) -> int:
        """Return the most sequences per microbatch that fit a device with this memory. 0: not even one fits."""
        state = self.params + self.gradients + self.optimizer + self.table * keeps_table
        free = int(memory_bytes * USABLE) - state
        return max(min([(free - one.fixed) // (turns * self.kept_per_row + one.per_row) for one in self.moments]), 0)


def measure_device(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return the memory of a device of a mesh."""
    # Otherwise `data` splits only the batch.
    data = degrees["data"] if spec.parallelism.shard_optimizer_over_data else 1
    return measure_workload(describe_workload(spec), {**degrees, "data": data})


def measure_workload(workload: Workload, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return the memory of a device for a workload. The degree of `data` is the one that shards the optimizer state."""
    return _measure(workload, tuple(degrees.items()))


@lru_cache(maxsize=256)  # the sizes of an elastic job mostly share these degrees
def _measure(program: Workload, axes: tuple[tuple[Axis, int], ...]) -> DeviceMemory:
    degrees = dict(axes)
    model, leaves = program.model, list_leaves(program.model)
    ways, at_rest = count_ways(degrees), count_ways(degrees, merge_rules(program.rules.written()))
    held = sum([leaf.shard_size(at_rest) for leaf in leaves])
    layers = sum([leaf.gathered_size(ways) for leaf in leaves if "layers" in leaf.axes])
    table = program.compute_bytes * model.vocab_size * model.embed_dim
    head = table // degrees["tensor"]
    shards = math.prod(degrees[axis] for axis in RULES["embed"])
    pieces = FLOAT32 * head // program.compute_bytes * min(shards, PIECES) // shards if shards > 1 else 0
    if program.is_cpu:  # XLA for CPUs all-reduces whole gradients, and gathers the head once a step
        pieces = FLOAT32 * (2 * head + table) // program.compute_bytes
    # Where `data` shards the optimizer state, new parameters are gathered beside the old ones, as compiled steps show.
    gathered = held * FLOAT32 if degrees["data"] > 1 else 0
    # A pipeline accumulates gradients in float32 over its ticks. It holds a float32 copy of the parameters beside them.
    if degrees["stage"] > 1 and program.param_bytes < FLOAT32:
        gathered += held * FLOAT32
    context = degrees["context"]
    length = program.length // context
    kept = model.num_layers // degrees["stage"] * length * _kept(program, context, ways)
    logits = length * _logits(program, ways)
    pipelined = PIPELINED if degrees["stage"] > 1 else 10
    return DeviceMemory(
        params=held * program.param_bytes,
        gradients=held * FLOAT32,
        optimizer=2 * sum([leaf.spread_size(at_rest, degrees["data"]) for leaf in leaves]) * FLOAT32,
        kept_per_row=kept * pipelined // 10,
        table=table,
        layers=layers * program.compute_bytes // degrees["stage"],
        head=head,
        logits_per_row=logits,
        moments=(
            Moment(gathered + head + pieces, logits),  # its gradient is reduced in float32, piece by piece
            # Values and gradients of one layer's gathered parameters, and of its attention scores.
            Moment(
                gathered + 2 * program.compute_bytes * layers // model.num_layers,
                length * _layer(program, context, ways),
            ),
        ),
    )


def _kept(program: Workload, context: int, ways: Ways) -> int:
    """Return the residual bytes that one layer saves per token, including gathered keys and values."""
    model, compute = program.model, program.compute_bytes
    if program.remat == "full":
        return model.embed_dim * compute
    norms = 2 * model.embed_dim * (3 * FLOAT32 + compute)
    heads, kv_heads = split_size(model.num_heads, "heads", ways), split_size(model.num_kv_heads, "kv_heads", ways)
    projections = compute * model.head_dim * (2 * heads + 2 * kv_heads)
    gathered = compute * model.head_dim * 2 * kv_heads * (context - 1)
    scores = heads * program.length * (FLOAT32 + compute)
    return norms + projections + gathered + scores + _mlp(program, ways)


def _mlp(program: Workload, ways: Ways) -> int:
    """Return the residual bytes per token in the MLP, or in the experts with their capacity slots and routing."""
    model, compute = program.model, program.compute_bytes
    one = 6 * compute * split_size(model.mlp_dim, "mlp", ways)
    if (experts := model.experts) is None:
        return one
    places = experts.count * experts.capacity(program.length)
    in_places = places * (one + 3 * compute * model.embed_dim) // experts.tokens_of_group(program.length)
    return in_places + places * compute + 4 * FLOAT32 * experts.count + experts.shared * one


def _layer(program: Workload, context: int, ways: Ways) -> int:
    """Return the bytes per token of the layer whose backward pass runs: its residuals without rematerialization."""
    at_hand = _kept(replace(program, remat="none"), context, ways)
    scores = split_size(program.model.num_heads, "heads", ways) * program.length * FLOAT32
    return at_hand if program.remat == "full" else at_hand + scores


def _logits(program: Workload, ways: Ways) -> int:
    """Return the bytes per token of the logits, and of their gradients in the format of the matmul."""
    number = 2 * FLOAT32 if program.is_cpu else FLOAT32
    return split_size(program.model.vocab_size, "vocab", ways) * (number + program.compute_bytes)
