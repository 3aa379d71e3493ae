"""How much memory a device needs, from the spec alone.

Assumptions, all of them about the trainer of this project: gradients are summed in float32; the two Adam moments are
float32; attention keeps its scores; the parameters of one layer are gathered at a time, the output projection where the
logits are, and the embedding table for as long as there are microsteps to come. A step needs most at one of two
moments: where the logits are, or where the first layer on the way back is; both stand on what all layers keep. How far
this is from XLA's own account of compiled steps is held by a test, see tests/golden/compiler.json.

Shapes: L length, D model width, H query heads, G key and value heads, K head width, F MLP width, V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import RULES, Ways, count_ways, merge_rules, split_ways
from trainingjob_operator.core.planner.parameters import list_leaves
from trainingjob_operator.core.planner.plan import MemoryEstimate
from trainingjob_operator.core.planner.workload import FLOAT32, Workload, describe_workload

USABLE = 0.92
"""Share of a device's memory that the program may take; runtime, compiled code and fragmentation have the rest."""


PIPELINED = 12
"""Tenths of what its layers keep that a stage holds: the rest are copies in the loop over turns, as seen on TPU."""
PIECES = 4
"""Pieces of the output projection's gradient that are on their way while it is summed over devices."""


@dataclass(frozen=True)
class Moment:
    """Bytes that are only needed for a while: some in any case, some for each row."""

    fixed: int
    per_row: int


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds, as a function of the rows of a microbatch on it."""

    params: int
    gradients: int
    optimizer: int
    kept_per_row: int
    """What all layers keep of a row for the way back."""
    table: int
    """The embedding table, gathered: it stays where more microsteps come and the mesh has one batch shard of `data`."""
    layers: int
    """The matrices of all layers of a stage, gathered; they are so one layer at a time."""
    head: int
    """The output projection, gathered."""
    logits_per_row: int
    moments: tuple[Moment, ...]

    def estimate(self, rows: int, turns: int, *, keeps_table: bool = True) -> MemoryEstimate:
        """Return the bytes at a number of rows, of which a pipeline keeps those of all its turns."""
        return MemoryEstimate(
            params=self.params,
            gradients=self.gradients,
            optimizer=self.optimizer,
            activations=turns * rows * self.kept_per_row,
            temporaries=self.table * keeps_table + max([one.fixed + rows * one.per_row for one in self.moments]),
        )

    def most_rows(self, memory_bytes: int, turns: int) -> int:
        """Return the most rows that fit a device of so much memory; 0: not even the parameters leave room for one."""
        free = int(memory_bytes * USABLE) - self.params - self.gradients - self.optimizer - self.table
        return max(min([(free - one.fixed) // (turns * self.kept_per_row + one.per_row) for one in self.moments]), 0)


def measure_device(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return what a device of a mesh holds."""
    # Else `data` splits only the batch.
    data = degrees["data"] if spec.parallelism.shard_optimizer_over_data else 1
    return measure_workload(describe_workload(spec), {**degrees, "data": data})


def measure_workload(workload: Workload, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return what a device of a mesh holds for a workload; the degree of `data` is that which splits the optimizer."""
    return _measure(workload, tuple(degrees.items()))


@lru_cache(maxsize=256)  # the sizes of an elastic job are mostly alike
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
    if program.is_cpu:  # it sums the whole gradients of head and table, and gathers the head once for all microsteps
        pieces = FLOAT32 * (2 * head + table) // program.compute_bytes
    # New parameters are gathered beside the old ones where `data` splits the optimizer (seen in compiled steps).
    gathered = held * FLOAT32 if degrees["data"] > 1 else 0
    # A pipeline adds up gradients in float32, in turns: beside them it holds the parameters in this format too.
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
            Moment(gathered + head + pieces, logits),  # its gradient is summed up in float32, piece by piece
            # Values and their gradients: of the gathered parameters in both, and of the scores.
            Moment(
                gathered + 2 * program.compute_bytes * layers // model.num_layers,
                length * _layer(program, context, ways),
            ),
        ),
    )


def _kept(program: Workload, context: int, ways: Ways) -> int:
    """Return the bytes that one token keeps in one layer, with its share of what attention gathers."""
    model, compute = program.model, program.compute_bytes
    if program.remat == "full":
        return model.embed_dim * compute
    norms = 2 * model.embed_dim * (3 * FLOAT32 + compute)
    heads, kv_heads = _split(model.num_heads, "heads", ways), _split(model.num_kv_heads, "kv_heads", ways)
    projections = compute * model.head_dim * (2 * heads + 2 * kv_heads)
    gathered = compute * model.head_dim * 2 * kv_heads * (context - 1)
    scores = heads * program.length * (FLOAT32 + compute)
    return norms + projections + gathered + scores + _mlp(program, ways)


def _mlp(program: Workload, ways: Ways) -> int:
    """Return the bytes that one token keeps in its MLP, or in its experts with their places and the way there."""
    model, compute = program.model, program.compute_bytes
    one = 6 * compute * _split(model.mlp_dim, "mlp", ways)
    if (experts := model.experts) is None:
        return one
    places = experts.count * experts.capacity(program.length)
    in_places = places * (one + 3 * compute * model.embed_dim) // experts.tokens_of_group(program.length)
    return in_places + places * compute + 4 * FLOAT32 * experts.count + experts.shared * one


def _layer(program: Workload, context: int, ways: Ways) -> int:
    """Return the bytes that one token needs in the layer that is computed, going backward: what it keeps, at hand."""
    at_hand = _kept(replace(program, remat="none"), context, ways)
    scores = _split(program.model.num_heads, "heads", ways) * program.length * FLOAT32
    return at_hand if program.remat == "full" else at_hand + scores


def _logits(program: Workload, ways: Ways) -> int:
    """Return the bytes that one token needs for its logits, and for their gradients as these are multiplied."""
    number = 2 * FLOAT32 if program.is_cpu else FLOAT32
    return _split(program.model.vocab_size, "vocab", ways) * (number + program.compute_bytes)


def _split(size: int, logical_axis: str, ways: Ways) -> int:
    """Return the part of a dim that one device holds."""
    return size // split_ways(logical_axis, size, ways)
