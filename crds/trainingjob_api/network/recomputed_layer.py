"""Memory of the backward pass of a recomputed layer, as compiled programs for accelerators show it.

No value of a norm exists in float32, since XLA fuses norms with the operations around them. The MLP releases its values
before the gradients of the attention begin. XLA for TPUs also fuses the activation of an MLP into its matmuls. It does
not where matrices are sharded: it multiplies by one shard after the other, and holds the sums before and after each
addition.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trainingjob_api.network.activations import MLP_OUTPUT, SavedName
from trainingjob_api.network.attention import CausalAttention
from trainingjob_api.network.attention_kernel import TPU
from trainingjob_api.network.part import Part, Shard

WHOLE_STREAM_VALUES = 3
"""Values of the residual stream's width for all tokens, whatever shards the stream: the input of attention or of the
MLP, and its gradient before and after the sum over `tensor`."""
STREAM_NAMES: AbstractSet[SavedName] = frozenset({"attentionProjection", MLP_OUTPUT})
"""Activations of the residual stream's width. The gradients of attention and MLP do not need them."""


def count_stream_bytes(width_bytes: int, num_norms: int, stream_shards: int) -> int:
    """Return the bytes per token of values of the residual stream's width: two of each norm, and the gradient.

    `width_bytes` are those of one value.
    """
    values = max(2 * num_norms + 1, WHOLE_STREAM_VALUES)
    return width_bytes * WHOLE_STREAM_VALUES + width_bytes * (values - WHOLE_STREAM_VALUES) // stream_shards


@dataclass(frozen=True)
class RecomputedLayer:
    """Bytes per token on a device in the backward pass of one layer."""

    stream: int
    """Values of the residual stream's width."""
    attention: int
    """Values that the gradients of the attention need, during the whole pass."""
    mlp: int
    """The most that the backward pass of the MLP holds."""
    mlp_of_shards: int
    """The same where the matrices are sharded."""
    attention_workspace: int
    attention_activations: Mapping[SavedName, int]
    """Bytes of the named activations of the attention, part of `attention`."""
    mlp_activations: Mapping[SavedName, int]

    @classmethod
    def describe(
        cls, attention: CausalAttention, mlp: Part, stream: int, scaling: int, unneeded: Mapping[str, int], shard: Shard
    ) -> "RecomputedLayer":
        """Return the bytes for the parts of a layer.

        Args:
            attention: the attention of the layer.
            mlp: its MLP or experts.
            stream: bytes of values of the residual stream's width.
            scaling: those of the MLP's operands while they are scaled.
            unneeded: those of values that only gradients of frozen tensors need, by part.
            shard: the share of a device.
        """
        saved_bytes = mlp.saved_bytes(shard) - unneeded["mlp"]
        is_fused = attention.accelerator.startswith(TPU)
        fused = min(mlp.recomputed_bytes(shard), saved_bytes) if is_fused else saved_bytes
        workspace = mlp.workspace_bytes(shard) + scaling
        return cls(
            stream,
            attention.saved_bytes(shard) - unneeded["attention"],
            fused + workspace,
            saved_bytes + workspace,
            attention.workspace_bytes(shard),
            *(
                {
                    activation.name: activation.num_bytes
                    for activation in part.activations(shard)
                    if activation.name not in STREAM_NAMES
                }
                for part in (attention, mlp)
            ),
        )

    def peak_bytes(self, saved: AbstractSet[str], *, is_sharded: bool) -> int:
        """Return the most bytes beside the saved activations, which are counted with those of all other layers.

        `is_sharded`: whether the matrices are sharded along the width of the residual stream.
        """
        attention = self.attention - _sum_saved(self.attention_activations, saved)
        mlp = (self.mlp_of_shards if is_sharded else self.mlp) - _sum_saved(self.mlp_activations, saved)
        return self.stream + max(attention, 0) + max(mlp, self.attention_workspace)


def _sum_saved(activations: Mapping[SavedName, int], saved: AbstractSet[str]) -> int:
    return sum(num_bytes for name, num_bytes in activations.items() if name in saved)
