"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): its options, its tensors and its costs.

Keys and values of all heads are projections of one narrow latent vector per token. The positions are in features of
their own: each head has its own queries for them, and all heads share one key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Unit
from trainingjob_api.network.attention import Attention, CacheEntry, CausalAttention
from trainingjob_api.network.attention_costs import ScoreShapes
from trainingjob_api.network.matrix_init import BY_WIDTH, InitRule
from trainingjob_api.network.norm import HiddenNorm, Norm
from trainingjob_api.network.part import BACKWARD_FLOPS, FORWARD_FLOPS, GradientInput, PartTraffic, Shard
from trainingjob_api.network.rope import Rope
from trainingjob_api.network.tensor import DecayClass, Role, Tensor
from trainingjob_api.token_order import Exchange

Rank = Annotated[int, Field(ge=1, le=65536)]
Width = Annotated[int, Field(ge=1, le=1024)]


class Latent(Strict):
    """Latent vectors from which queries, keys and values are computed."""

    query_rank: Annotated[Rank | None, Unit("features"), Example(1536)] = Field(
        default=None, description="Width of the latent vector of queries. Unset: queries are projected directly."
    )
    key_value_rank: Annotated[Rank, Unit("features"), Example(512)] = Field(
        description="Width of the latent vector of keys and values."
    )
    rope_dim: Annotated[Width, Unit("features"), Example(64)] = Field(
        description="Features of a head that hold rotary positions, an even number. All heads share their keys."
    )
    no_rope_dim: Annotated[Width, Unit("features"), Example(128)] = Field(
        description="Features of a query and a key head without positions."
    )
    value_dim: Annotated[Width, Unit("features"), Example(128)] = Field(description="Features of a value head.")

    @property
    def head_dim(self) -> int:
        """Return the width of a query and a key head."""
        return self.no_rope_dim + self.rope_dim


@dataclass(frozen=True)
class LatentAttention(CausalAttention):
    """Causal attention whose keys and values are projections of a latent vector."""

    width: int
    num_heads: int
    latent: Latent
    options: Attention
    rope: Rope | None
    """None: queries and keys have no positions."""
    norm: Norm
    accelerator: str = ""
    exchange: Exchange = "gather"
    init: InitRule = BY_WIDTH

    @property
    def key_width(self) -> int:
        """Return the width of a query and a key head."""
        return self.latent.head_dim

    @property
    def query_norm(self) -> HiddenNorm | None:
        """Return the norm of the latent vector of queries."""
        return HiddenNorm(self.latent.query_rank, self.norm) if self.latent.query_rank else None

    @property
    def key_value_norm(self) -> HiddenNorm:
        """Return the norm of the latent vector of keys and values."""
        return HiddenNorm(self.latent.key_value_rank, self.norm)

    @property
    def norms(self) -> Mapping[str, HiddenNorm | None]:
        """Return the norms of the latent vectors."""
        return {"query_norm": self.query_norm, "key_value_norm": self.key_value_norm}

    @cached_property
    def own_tensors(self) -> tuple[Tensor, ...]:
        """Return the matrices."""
        latent, heads = self.latent, self.num_heads
        query_down = (self._down("query_down", latent.query_rank),) if latent.query_rank else ()
        out_init, out_axes = self.init.of_output(heads * latent.value_dim), ("heads", "head", "embed")
        out_shape = (heads, latent.value_dim, self.width)
        return (
            *query_down,
            self._up("query_up" if latent.query_rank else "query", latent.query_rank, latent.head_dim),
            self._down("key_value_down", latent.key_value_rank),
            self._down("rope_key", latent.rope_dim),
            self._up("key", latent.key_value_rank, latent.no_rope_dim),
            self._up("value", latent.key_value_rank, latent.value_dim),
            Tensor("out", out_shape, out_axes, out_init, DecayClass.MATRIX, Role.MIXER_OUTPUT),
        )

    def _down(self, name: str, rank: int) -> Tensor:
        init = self.init.of_inputs(self.width)
        return Tensor(name, (self.width, rank), ("embed", "head"), init, DecayClass.MATRIX, Role.INPUT)

    def _up(self, name: str, rank: int | None, head_dim: int) -> Tensor:
        width, axis = (rank, "latent") if rank else (self.width, "embed")
        shape, axes, init = (width, self.num_heads, head_dim), (axis, "heads", "head"), self.init.of_inputs(width)
        return Tensor(name, shape, axes, init, DecayClass.MATRIX, Role.INPUT)

    @property
    def cache_entries(self) -> Mapping[str, CacheEntry]:
        """Return the latent vector of a token's keys and values, and the key that all heads share."""
        return {
            "latent": CacheEntry((self.latent.key_value_rank,), (None,)),
            "rope_key": CacheEntry((self.latent.rope_dim,), (None,)),
        }

    def score_shapes(self, shard: Shard) -> ScoreShapes:
        """Return the shapes of the scores on one device."""
        heads = shard.split(self.num_heads, "heads")
        return ScoreShapes(heads, heads, self.latent.head_dim, self.latent.value_dim, self.scope)

    def causal_flops(self, length: int) -> int:
        """Return the FLOPs of the unmasked half of the scores."""
        features = self.latent.head_dim + self.latent.value_dim
        return (FORWARD_FLOPS + BACKWARD_FLOPS) * length * self.num_heads * features // 2

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of latent vectors, queries, keys, values, output and scores, and of gathered keys."""
        heads, latent = shard.split(self.num_heads, "heads"), self.latent
        keys_and_values = heads * (latent.head_dim + latent.value_dim)
        features = heads * (latent.head_dim + latent.value_dim) + keys_and_values * self.key_copies(shard)
        norms = [norm.saved_bytes(shard) for norm in self.norms.values() if norm]
        scores = self.score_costs(shard).saved_bytes
        return shard.compute_bytes * (features + latent.rope_dim) + sum(norms) + scores

    def norm_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return the normalized latent vectors: before their scales, and after them for the matrices that follow."""
        readers = {"query_norm": frozenset({"query_up"}), "key_value_norm": frozenset({"key", "value"})}
        norms = [(name, norm) for name, norm in self.norms.items() if norm]
        scales = (
            gradient_input.nest(f"{name}.") for name, norm in norms for gradient_input in norm.gradient_inputs(shard)
        )
        results = (GradientInput(readers[name], shard.compute_bytes * norm.width) for name, norm in norms)
        return (*scales, *results)

    def traffic(self, length: int) -> PartTraffic:
        """Return the sums of the output and of gradients, and the gathered keys and values.

        The gradients are summed as those of latent vectors, and that of the input if queries have no latent vector. XLA
        for CPUs sums the latent vector of keys and values for each of them.
        """
        latent = self.latent
        summed = (latent.query_rank or self.width) + latent.key_value_rank + latent.rope_dim
        return PartTraffic(
            tensor_sums=2,
            recomputed_sums=1,
            separate_sums=latent.key_value_rank / self.width,
            backward_excess=summed / self.width - 1,
            context_features=self.num_heads * (latent.head_dim + latent.value_dim) // 2,
        )
