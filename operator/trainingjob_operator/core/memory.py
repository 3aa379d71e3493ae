"""How much memory a device needs, from the spec alone.

Assumptions, all of them about the trainer of this project: gradients are summed in float32 beside those of one
microstep; the two Adam moments are float32; attention keeps its scores; a device gathers the parameters of one layer,
and the embedding table, at a time; what XLA fuses away is not counted, what it may keep is. The estimate decides what
fits, so that it leans to the larger side.

Shapes: L length, D model width, H query heads, G key and value heads, K head width, F MLP width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.learning import Model
from trainingjob_api.sharding import split_ways
from trainingjob_operator.core.parameters import list_leaves
from trainingjob_operator.core.plan import MemoryEstimate

USABLE = 0.92
"""Share of a device's memory that the program may take; runtime, compiled code and fragmentation have the rest."""
FLOAT32 = 4
_BYTES = {"float32": FLOAT32, "bfloat16": 2}


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds, as a function of the rows of a microbatch on it."""

    params: int
    gradients: int
    optimizer: int
    gathered: int
    """Temporaries that do not depend on the rows."""
    activations_per_row: int
    temporaries_per_row: int

    def estimate(self, rows: int) -> MemoryEstimate:
        """Return the bytes at a number of rows."""
        return MemoryEstimate(
            params=self.params,
            gradients=self.gradients,
            optimizer=self.optimizer,
            activations=rows * self.activations_per_row,
            temporaries=self.gathered + rows * self.temporaries_per_row,
        )

    def most_rows(self, memory_bytes: int) -> int:
        """Return the most rows that fit a device of so much memory; 0: not even the parameters leave room for one."""
        free = int(memory_bytes * USABLE) - self.estimate(0).total
        return max(free // (self.activations_per_row + self.temporaries_per_row), 0)


def measure_device(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return what a device of a mesh holds."""
    model, compute = spec.model, _BYTES[spec.precision.compute]
    leaves = list_leaves(model)
    held = sum(leaf.shard_size(degrees) for leaf in leaves)
    # The axis that fsdp splits is gathered for use; what tensor splits stays split.
    used = {**degrees, "fsdp": 1}
    layer = sum(leaf.shard_size(used) for leaf in leaves if leaf.name.startswith("layers.")) // model.num_layers
    table = model.vocab_size * model.embed_dim
    length, vocab = spec.training.sequence_length, _split(model.vocab_size, "vocab", degrees)
    return DeviceMemory(
        params=held * _BYTES[spec.precision.params],
        gradients=2 * held * FLOAT32,
        optimizer=2 * held * FLOAT32,
        gathered=2 * compute * (layer + table),
        activations_per_row=_activations(spec, degrees, compute),
        temporaries_per_row=length * vocab * (2 * FLOAT32 + compute),
    )


def _activations(spec: TrainingJobSpec, degrees: Mapping[Axis, int], compute: int) -> int:
    """Return the bytes that one row keeps for the way back, and those of the layer that is computed."""
    model, length = spec.model, spec.training.sequence_length
    layer = length * _layer_bytes(model, length, degrees, compute)
    stream = length * model.embed_dim * compute
    kept = stream if spec.memory.remat == "full" else layer
    # Going backward, one layer's values stand once more beside what all layers keep.
    return model.num_layers * kept + layer


def _layer_bytes(model: Model, length: int, degrees: Mapping[Axis, int], compute: int) -> int:
    """Return the bytes that one token keeps in one layer."""
    heads = _split(model.num_heads, "heads", degrees)
    kv_heads = _split(model.num_kv_heads, "kv_heads", degrees)
    norms = 2 * model.embed_dim * (3 * FLOAT32 + compute)
    projections = compute * model.head_dim * (2 * heads + 2 * kv_heads)
    scores = heads * length * (FLOAT32 + compute)
    mlp = 6 * compute * _split(model.mlp_dim, "mlp", degrees)
    return norms + projections + scores + mlp


def _split(size: int, logical_axis: str, degrees: Mapping[Axis, int]) -> int:
    """Return the part of a dim that one device holds."""
    return size // split_ways(logical_axis, size, degrees)
