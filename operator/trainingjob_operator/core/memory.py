"""How much memory a device needs, from the spec alone.

Assumptions, all of them about the trainer of this project: gradients are summed in float32 beside those of one
microstep; the two Adam moments are float32; attention keeps its scores; the parameters of one layer, or the embedding
table, are gathered at a time. A step needs most at one of two moments: where the logits are, or where the first layer
on the way back is; both stand on what all layers keep. Measured against XLA's own account of compiled steps (eleven
shapes on CPU, two on TPU v5p), all but the state was estimated from 1 % too low to 21 % too high; the state is exact.

Shapes: L length, D model width, H query heads, G key and value heads, K head width, F MLP width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.learning import Model, Precision
from trainingjob_api.machine import Rules
from trainingjob_api.sharding import merge_rules, split_ways
from trainingjob_operator.core.parameters import list_leaves
from trainingjob_operator.core.plan import MemoryEstimate

USABLE = 0.92
"""Share of a device's memory that the program may take; runtime, compiled code and fragmentation have the rest."""
FLOAT32 = 4
_BYTES = {"float32": FLOAT32, "bfloat16": 2}


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
    moments: tuple[Moment, ...]

    def estimate(self, rows: int, turns: int) -> MemoryEstimate:
        """Return the bytes at a number of rows, of which a pipeline keeps those of all its turns."""
        return MemoryEstimate(
            params=self.params,
            gradients=self.gradients,
            optimizer=self.optimizer,
            activations=turns * rows * self.kept_per_row,
            temporaries=max(moment.fixed + rows * moment.per_row for moment in self.moments),
        )

    def most_rows(self, memory_bytes: int, turns: int) -> int:
        """Return the most rows that fit a device of so much memory; 0: not even the parameters leave room for one."""
        free = int(memory_bytes * USABLE) - self.params - self.gradients - self.optimizer
        return max(min((free - one.fixed) // (turns * self.kept_per_row + one.per_row) for one in self.moments), 0)


def measure_device(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return what a device of a mesh holds."""
    program = _Program(
        spec.model, spec.training.sequence_length, spec.precision, spec.memory.remat, spec.parallelism.rules
    )
    # Else `data` splits only the batch.
    data = degrees["data"] if spec.parallelism.shard_optimizer_over_data else 1
    return _measure(program, tuple({**degrees, "data": data}.items()))


@dataclass(frozen=True)
class _Program:
    """All of a spec that memory depends on."""

    model: Model
    length: int
    precision: Precision
    remat: str
    rules: Rules

    @property
    def compute(self) -> int:
        """Return the bytes of a number that is computed with."""
        return _BYTES[self.precision.compute]


@lru_cache(maxsize=256)  # the sizes of an elastic job are mostly alike
def _measure(program: _Program, axes: tuple[tuple[Axis, int], ...]) -> DeviceMemory:
    degrees = dict(axes)
    model, leaves = program.model, list_leaves(program.model)
    rules = merge_rules(program.rules.written())
    held = sum(leaf.shard_size(degrees, rules) for leaf in leaves)
    layer = sum(leaf.gathered_size(degrees) for leaf in leaves if "layers" in leaf.axes) // model.num_layers
    table = model.vocab_size * model.embed_dim
    length = program.length // degrees["context"]
    return DeviceMemory(
        params=held * _BYTES[program.precision.params],
        gradients=2 * held * FLOAT32,
        optimizer=2 * sum(leaf.spread_size(degrees, rules) for leaf in leaves) * FLOAT32,
        kept_per_row=model.num_layers // degrees["stage"] * length * _kept(program, degrees),
        # Values and their gradients: of the gathered parameters in both, and of the logits or the scores.
        moments=(
            Moment(2 * program.compute * table, length * _logits(program, degrees)),
            Moment(2 * program.compute * layer, length * _layer(program, degrees)),
        ),
    )


def _kept(program: _Program, degrees: Mapping[Axis, int]) -> int:
    """Return the bytes that one token keeps in one layer, with its share of what attention gathers."""
    model, compute = program.model, program.compute
    if program.remat == "full":
        return model.embed_dim * compute
    norms = 2 * model.embed_dim * (3 * FLOAT32 + compute)
    heads, kv_heads = _split(model.num_heads, "heads", degrees), _split(model.num_kv_heads, "kv_heads", degrees)
    projections = compute * model.head_dim * (2 * heads + 2 * kv_heads)
    gathered = compute * model.head_dim * 2 * kv_heads * (degrees["context"] - 1)
    scores = heads * program.length * (FLOAT32 + compute)
    return norms + projections + gathered + scores + _mlp(program, degrees)


def _mlp(program: _Program, degrees: Mapping[Axis, int]) -> int:
    """Return the bytes that one token keeps in its MLP, or in its experts with their places and the way there."""
    model, compute = program.model, program.compute
    one = 6 * compute * _split(model.mlp_dim, "mlp", degrees)
    if (experts := model.experts) is None:
        return one
    places = experts.count * experts.capacity(program.length)
    in_places = places * (one + 3 * compute * model.embed_dim) // experts.tokens_of_group(program.length)
    return in_places + places * compute + 4 * FLOAT32 * experts.count + experts.shared * one


def _layer(program: _Program, degrees: Mapping[Axis, int]) -> int:
    """Return the bytes that one token needs in the layer that is computed, going backward."""
    scores = _split(program.model.num_heads, "heads", degrees) * program.length * FLOAT32
    return _kept(replace(program, remat="none"), degrees) + scores


def _logits(program: _Program, degrees: Mapping[Axis, int]) -> int:
    """Return the bytes that one token needs for its logits, their gradients, and the cast of these."""
    return _split(program.model.vocab_size, "vocab", degrees) * (2 * FLOAT32 + program.compute)


def _split(size: int, logical_axis: str, degrees: Mapping[Axis, int]) -> int:
    """Return the part of a dim that one device holds."""
    return size // split_ways(logical_axis, size, degrees)
