"""Grouped-query attention (Ainslie et al., arXiv 2305.13245): its options, its tensors and its costs."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example
from trainingjob_api.network.norm import Norm, RmsNorm
from trainingjob_api.network.part import BACKWARD_FLOPS, FLOAT32, FORWARD_FLOPS, Part, PartTraffic, PassFlops, Shard
from trainingjob_api.network.rope import Rope
from trainingjob_api.network.tensor import DecayClass, Normal, Role, Tensor


class Attention(Strict):
    """Options of the attention layers."""

    query_key_norm: Annotated[Literal["perHead"] | None, Example("perHead")] = Field(
        default=None,
        description="RMS norm of queries and keys before the rotary positions. `perHead` normalizes each head, with "
        "one learned scale for all heads of a layer, as in Qwen3.",
    )


@dataclass(frozen=True)
class HeadSizes:
    """Numbers of heads, and the width of each, with the defaults that depend on other fields."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class GroupedQueryAttention(Part):
    """Causal attention that saves its scores."""

    width: int
    heads: HeadSizes
    options: Attention
    rope: Rope
    norm: Norm

    @property
    def query_key_norm(self) -> RmsNorm | None:
        """Return the norm of each query and key before the rotary positions (Henry et al., arXiv 2010.04245)."""
        return RmsNorm(self.heads.head_dim, self.norm.epsilon) if self.options.query_key_norm else None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the projections, and the scales of the norms of queries and keys."""
        scales = self.query_key_norm.tensors if self.query_key_norm else ()
        norms = (scale.nest(prefix) for prefix in ("query_norm.", "key_norm.") for scale in scales)
        return (*self.projections, *norms)

    @property
    def projections(self) -> tuple[Tensor, ...]:
        """Return the matrices."""
        width, heads, head, init = self.width, self.heads.num_heads, self.heads.head_dim, Normal(self.width**-0.5)
        kv_shape, kv_axes = (width, self.heads.num_kv_heads, head), ("embed", "kv_heads", "head")
        matrix, out_init = DecayClass.MATRIX, Normal((heads * head) ** -0.5)
        return (
            Tensor("query", (width, heads, head), ("embed", "heads", "head"), init, matrix, Role.INPUT),
            Tensor("key", kv_shape, kv_axes, init, matrix, Role.INPUT),
            Tensor("value", kv_shape, kv_axes, init, matrix, Role.PAIRED_INPUT),
            Tensor("out", (heads, head, width), ("heads", "head", "embed"), out_init, matrix, Role.MIXER_OUTPUT),
        )

    def flops(self, shard: Shard) -> PassFlops:
        """Return the FLOPs of the projections and of the scores of the whole sequence, including masked ones."""
        scores = 2 * shard.split(self.heads.num_heads, "heads") * self.heads.head_dim * shard.length
        matrices = super().flops(shard)
        return PassFlops(
            matrices.forward + FORWARD_FLOPS * scores,
            matrices.backward + BACKWARD_FLOPS * scores,
            matrices.recomputed + FORWARD_FLOPS * scores,
        )

    def causal_flops(self, length: int) -> int:
        """Return the FLOPs of the unmasked half of the scores."""
        return (FORWARD_FLOPS + BACKWARD_FLOPS) * length * self.heads.num_heads * self.heads.head_dim

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of queries, keys, values, output, scores and norms, and of gathered keys and values."""
        heads, kv_heads = shard.split(self.heads.num_heads, "heads"), shard.split(self.heads.num_kv_heads, "kv_heads")
        projections = shard.compute_bytes * self.heads.head_dim * (2 * heads + 2 * kv_heads)
        gathered = shard.compute_bytes * self.heads.head_dim * 2 * kv_heads * (shard.degrees["context"] - 1)
        norms = (heads + kv_heads) * self.query_key_norm.saved_bytes(shard) if self.query_key_norm else 0
        return projections + norms + gathered + heads * shard.length * (FLOAT32 + shard.compute_bytes)

    def backward_bytes(self, shard: Shard) -> int:
        """Return the bytes of the gradients of the scores."""
        return shard.split(self.heads.num_heads, "heads") * shard.length * FLOAT32

    def traffic(self, length: int) -> PartTraffic:
        """Return the sums of the output and of the input's gradient, and the gathered keys and values."""
        features = self.heads.head_dim * self.heads.num_kv_heads
        return PartTraffic(tensor_sums=2, recomputed_sums=1, separate_sums=2, context_features=features)
