"""The costs of a layer on one device, from those of its parts."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from trainingjob_api.network.activations import MLP_OUTPUT, Activation
from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.part import FORWARD_FLOPS, GradientInput, PassFlops, Shard
from trainingjob_api.network.recomputed_layer import RecomputedLayer, count_stream_bytes
from trainingjob_api.network.routed_mlp import RoutedMlp

if TYPE_CHECKING:  # a layer has these costs
    from trainingjob_api.network.block import Block


class LayerCosts:
    """Costs of one layer on a device per token, for any choice of saved activations."""

    def __init__(self, block: "Block", shard: Shard) -> None:
        parts = block.parts.values()
        unneeded = find_unneeded_values(block, shard)
        unneeded_bytes = {
            name: sum([gradient_input.num_bytes for gradient_input in values]) for name, values in unneeded.items()
        }
        unread = find_unneeded_values(block, shard, reads_copies=False)
        named = [activation for part in parts for activation in part.activations(shard)]
        if isinstance(block.mlp, DenseMlp) and not block.mlp_output_norm:
            named = [activation for activation in named if activation.name != MLP_OUTPUT]
        self._named = tuple(named)
        self._products: dict[str, str] = {
            gradient_input.activation: gradient_input.product
            for values in unread.values()
            for gradient_input in values
            if gradient_input.activation and gradient_input.product
        }
        """Maps each activation that no gradient needs to the activation that is recomputed from it."""
        flops = [part.flops(shard) for part in parts]
        frozen = [tensor for tensor in block.tensors if tensor.is_matrix and not tensor.is_trainable]
        frozen_flops = FORWARD_FLOPS * sum([block.part_of(tensor).product_size(tensor, shard) for tensor in frozen])
        self.flops = PassFlops(
            sum([part_flops.forward for part_flops in flops]),
            0 if block.is_forward_only else sum([part_flops.backward for part_flops in flops]) - frozen_flops,
            sum([part_flops.recomputed for part_flops in flops]),
        )
        saved = {name: part.saved_bytes(shard) - unneeded_bytes[name] for name, part in block.parts.items()}
        norms = sum([saved[name] for name, part in block.parts.items() if isinstance(part, HiddenNorm)])
        adapted = block.adaptation.saved_bytes(block.tensors_by_name, shard) if block.adaptation else 0
        self.saved_bytes = sum(saved.values()) - norms + norms // block.count_stream_shards(shard) + adapted
        """Bytes that the forward pass saves without rematerialization."""
        is_scaled = block.quantized is not None and block.quantized.type == "int8"
        scaling = block.mlp.scaling_bytes(shard) if is_scaled and isinstance(block.mlp, RoutedMlp) else 0
        self.recomputed: RecomputedLayer | None = None
        """Memory of the backward pass of a recomputed layer. None: the saved values and the workspace."""
        if block.attention.stores_no_scores(shard):
            num_norms = sum([isinstance(part, HiddenNorm) for part in parts])
            hidden_bytes = block.attention.width * shard.compute_bytes
            stream = count_stream_bytes(hidden_bytes, num_norms, block.count_stream_shards(shard)) + adapted
            self.recomputed = RecomputedLayer.describe(
                block.attention, block.mlp, stream, scaling, unneeded_bytes, shard
            )
        self.gradient_bytes = sum([part.backward_bytes(shard) for part in parts])
        self.workspace_bytes = scaling + sum([part.workspace_bytes(shard) for part in parts])

    def activations(self, saved: AbstractSet[str]) -> tuple[Activation, ...]:
        """Return the named activations that the backward pass needs if it has the saved ones."""
        return tuple(activation for activation in self._named if self._products.get(activation.name) not in saved)

    def unneeded_flops(self, saved: AbstractSet[str]) -> int:
        """Return those of `flops.recomputed` that compute named activations which the backward pass does not need."""
        return sum([activation.flops for activation in self._named if self._products.get(activation.name) in saved])

    def recomputation_bytes(self, saved: AbstractSet[str]) -> int:
        """Return the bytes of activations that only the recomputation of others needs, no part of `saved_bytes`."""
        return sum(
            [activation.num_bytes for activation in self.activations(saved) if activation.name in self._products]
        )


def find_unneeded_values(
    block: "Block", shard: Shard, *, reads_copies: bool = True
) -> Mapping[str, tuple[GradientInput, ...]]:
    """Return the values that each part would save only for gradients of frozen tensors.

    The gradients of an adapter need the input of its matrix, or with dropout a copy, which the adapter counts. Without
    `reads_copies` the value itself is needed: rematerialization computes the copy from it.
    """
    if block.is_forward_only:
        return dict.fromkeys(block.parts, ())
    needed = {tensor.name for tensor in block.tensors if tensor.is_trainable}
    if block.adaptation and not (block.adaptation.dropout and reads_copies):
        needed |= block.adaptation.targets
    values = {
        name: [gradient_input.nest(f"{name}.") for gradient_input in part.gradient_inputs(shard)]
        for name, part in block.parts.items()
    }
    for name, norm in (("attention", block.attention_norm), ("mlp", block.mlp_norm)):
        if norm:
            matrices = [tensor.nest(f"{name}.") for tensor in block.parts[name].tensors if tensor.is_matrix]
            readers = frozenset(matrix.name for matrix in matrices if matrix.axes[0] == "embed")
            values[f"{name}_norm"].append(GradientInput(readers, shard.compute_bytes * norm.width))
    return {
        name: tuple(gradient_input for gradient_input in found if not gradient_input.names & needed)
        for name, found in values.items()
    }
