"""Grouped-query attention (Ainslie et al., arXiv 2305.13245): its options, its tensors and its costs."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit
from trainingjob_api.network.activations import ATTENTION_OUTPUT, PRODUCTS, Activation
from trainingjob_api.network.attention_blocks import CausalScope
from trainingjob_api.network.attention_costs import ScoreCosts, ScoreShapes, count_score_costs
from trainingjob_api.network.attention_kernel import CPU, AttentionCase, KernelChoice, KernelName, choose_attention
from trainingjob_api.network.matrix_init import BY_WIDTH, InitRule
from trainingjob_api.network.norm import HiddenNorm, Norm
from trainingjob_api.network.part import (
    BACKWARD_FLOPS,
    FORWARD_FLOPS,
    GradientInput,
    Part,
    PartTraffic,
    PassFlops,
    Shard,
)
from trainingjob_api.network.ring_blocks import Ring, find_ring
from trainingjob_api.network.rope import Rope
from trainingjob_api.network.tensor import DecayClass, Role, Tensor, Zeros, make_bias
from trainingjob_api.token_order import Exchange


class TemperatureTuning(Strict):
    """Factor on the queries of layers without positions, which grows with the position (Llama 4)."""

    length: Annotated[int, Field(ge=1, le=10000000), Unit("tokens"), Example(8192)] = Field(
        default=8192, description="Number of tokens after which the factor grows."
    )
    scale: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(0.1)] = Field(
        default=0.1, description="Growth: the factor is 1 + `scale` ln(1 + floor(position / `length`))."
    )


Projection = Literal["query", "key", "value", "out"]


class Attention(Strict):
    """Options of the attention layers."""

    query_key_norm: Annotated[Literal["perHead", "perProjection", "l2"] | None, Example("perHead")] = Field(
        default=None,
        description="RMS norm of queries and keys, of each head (`perHead`, Qwen3) or of all together "
        "(`perProjection`, OLMo 3). `l2` follows the rotary positions, without a learned scale (Llama 4).",
    )
    bias: Annotated[
        tuple[Projection, ...], Field(max_length=4, json_schema_extra=LIST_TYPE_SET), Example(["query"])
    ] = Field(default=(), description="Projections that add a learned bias: `query`, `key`, `value`, `out`.")
    scale: Annotated[Annotated[float, Field(gt=0, le=100)] | None, NO_UNIT, Example(0.125)] = Field(
        default=None,
        description="Factor on the products of queries and keys. Unset: the head width to the power of -0.5.",
    )
    soft_cap: Annotated[Annotated[float, Field(gt=0, le=10000)] | None, NO_UNIT, Example(50.0)] = Field(
        default=None,
        description="Limit that the scores approach by tanh (Gemma 2, arXiv 2408.00118). Unset: no limit.",
    )
    window: Annotated[Annotated[int, Field(ge=1, le=10000000)] | None, Unit("tokens"), Example(4096)] = Field(
        default=None,
        description="Number of last tokens, with itself, that a token attends to (Beltagy et al., arXiv 2004.05150). "
        "Unset: all before it.",
    )
    chunk: Annotated[Annotated[int, Field(ge=1, le=10000000)] | None, Unit("tokens"), Example(8192)] = Field(
        default=None,
        description="Length of the chunks of a sequence between which no token attends, as in Llama 4. Unset: one "
        "chunk.",
    )
    sinks: Annotated[bool, Example(False)] = Field(
        default=False,
        description="Adds a learned logit to the softmax of each head, which takes a share and reads nothing "
        "(gpt-oss).",
    )
    temperature_tuning: TemperatureTuning | None = Field(
        default=None, description="Factor on queries that grows with the position. Unset: none."
    )


@dataclass(frozen=True)
class HeadSizes:
    """Numbers of heads, and the width of each, with the defaults that depend on other fields."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class CacheEntry:
    """Values of a token that later tokens of generated text read, and their logical axes."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


class CausalAttention(Part):
    """What all kinds of attention have in common: the scores, and the kernel that computes them."""

    width: int
    options: Attention
    accelerator: str
    """Name in the hardware table, by which the kernel is chosen. Empty: not known."""
    exchange: Exchange
    """How the devices along `context` exchange keys and values."""

    @property
    @abstractmethod
    def own_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors outside of the norms."""

    @property
    @abstractmethod
    def norms(self) -> Mapping[str, HiddenNorm | None]:
        """Return the norms by name. None: there is none."""

    @property
    @abstractmethod
    def cache_entries(self) -> Mapping[str, CacheEntry]:
        """Return what generation of text keeps of each token, by name."""

    @abstractmethod
    def score_shapes(self, shard: Shard) -> ScoreShapes:
        """Return the shapes of the scores on one device."""

    @property
    @abstractmethod
    def key_width(self) -> int:
        """Return the width of a query and a key head."""

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of the attention and of its norms."""
        norms = ((name, norm) for name, norm in self.norms.items() if norm)
        return (*self.own_tensors, *(scale.nest(f"{name}.") for name, norm in norms for scale in norm.tensors))

    @property
    def scale(self) -> float:
        """Return the factor on the products of queries and keys."""
        return self.options.scale or self.key_width**-0.5

    @property
    def scope(self) -> CausalScope:
        """Return the keys that a query attends to."""
        return CausalScope(self.options.window, self.options.chunk)

    def ring(self, length: int, shards: int) -> Ring:
        """Return the ring of a number of devices along `context` for sequences of a length."""
        return find_ring(length, shards, self.scope)

    def choose_kernel(self, shard: Shard) -> KernelChoice[KernelName]:
        """Return the kernel for a device's share of a sequence."""
        shapes = self.score_shapes(shard)
        case = AttentionCase(
            accelerator=self.accelerator,
            length=shard.length,
            context=shard.degrees.get("context", 1),
            compute_bytes=shard.compute_bytes,
            key_width=shapes.key_width,
            value_width=shapes.value_width,
            scope=self.scope,
            has_soft_cap=self.options.soft_cap is not None,
            has_sinks=self.options.sinks,
            has_documents=shard.has_documents,
            exchange=self.exchange,
        )
        return choose_attention(case)

    def stores_no_scores(self, shard: Shard) -> bool:
        """Return whether the kernel of an accelerator stores no scores. XLA for CPUs fuses less."""
        return self.accelerator not in ("", CPU) and self.choose_kernel(shard).name != "plain"

    def score_costs(self, shard: Shard) -> ScoreCosts:
        """Return the costs of the scores with the chosen kernel."""
        return count_score_costs(self.choose_kernel(shard).name, self.score_shapes(shard), shard)

    def flops(self, shard: Shard) -> PassFlops:
        """Return the FLOPs of the projections, and of the scores that the kernel computes."""
        scores, matrices = self.score_costs(shard), super().flops(shard)
        return PassFlops(
            matrices.forward + scores.forward_flops,
            matrices.backward + scores.backward_flops,
            matrices.recomputed + scores.forward_flops,
        )

    def key_copies(self, shard: Shard) -> int:
        """Return the saved bytes of keys in relation to those of a device's own tokens."""
        return 1 if self.exchange == "ring" else shard.degrees.get("context", 1)

    def activations(self, shard: Shard) -> tuple[Activation, ...]:
        """Return the products of the matrices, and what the heads read.

        The plain kernel computes the scores again all the same. The other kernels need nothing but their output and the
        log-sum-exp of the scores, which is saved with it. JAX names none of them for cuDNN, which runs again.
        """
        kernel, shapes, costs = self.choose_kernel(shard).name, self.score_shapes(shard), self.score_costs(shard)
        num_bytes, flops = shapes.heads * shapes.value_width * shard.compute_bytes, costs.forward_flops
        if kernel == "cudnn":
            return super().activations(shard)
        if kernel == "plain":
            flops = flops * shapes.value_width // (shapes.key_width + shapes.value_width)
        else:
            num_bytes += costs.saved_bytes
        return (*super().activations(shard), Activation(ATTENTION_OUTPUT, num_bytes, flops))

    def gradient_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return what the heads read, unless the gradients of the scores need it too, and those of the norms."""
        shapes = self.score_shapes(shard)
        num_bytes = shapes.heads * shapes.value_width * shard.compute_bytes
        is_plain = self.choose_kernel(shard).name == "plain"
        output = GradientInput(frozenset({"out"}), num_bytes, ATTENTION_OUTPUT, PRODUCTS["out"])
        return (*([output] if is_plain else ()), *self.norm_inputs(shard))

    @abstractmethod
    def norm_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return the values that only the gradients of the norms need, and those of the matrices that read them."""

    def backward_bytes(self, shard: Shard) -> int:
        """Return the bytes of the gradients of the scores."""
        return self.score_costs(shard).backward_bytes

    def workspace_bytes(self, shard: Shard) -> int:
        """Return the bytes of the kernel's temporary values."""
        return self.score_costs(shard).workspace_bytes


@dataclass(frozen=True)
class GroupedQueryAttention(CausalAttention):
    """Causal attention in which several query heads share a key head."""

    width: int
    heads: HeadSizes
    options: Attention
    rope: Rope | None
    """None: queries and keys have no positions."""
    norm: Norm
    accelerator: str = ""
    exchange: Exchange = "gather"
    init: InitRule = BY_WIDTH

    @property
    def key_width(self) -> int:
        """Return the width of a head."""
        return self.heads.head_dim

    @property
    def query_norm(self) -> HiddenNorm | None:
        """Return the norm of queries before the rotary positions (Henry et al., arXiv 2010.04245)."""
        return self._norm(self.heads.num_heads)

    @property
    def key_norm(self) -> HiddenNorm | None:
        """Return the norm of keys before the rotary positions."""
        return self._norm(self.heads.num_kv_heads)

    def _norm(self, num_heads: int) -> HiddenNorm | None:
        if self.options.query_key_norm == "perHead":
            return HiddenNorm(self.heads.head_dim, self.norm)
        if self.options.query_key_norm == "perProjection":
            return HiddenNorm(num_heads * self.heads.head_dim, self.norm)
        return None

    @property
    def norms(self) -> Mapping[str, HiddenNorm | None]:
        """Return the norms of queries and keys."""
        return {"query_norm": self.query_norm, "key_norm": self.key_norm}

    @cached_property
    def own_tensors(self) -> tuple[Tensor, ...]:
        """Return the matrices, their biases and the logits of sinks."""
        biases = [make_bias(matrix) for matrix in self._projections if matrix.name in self.options.bias]
        sinks = Tensor("sinks", (self.heads.num_heads,), ("heads",), Zeros(), DecayClass.BIAS, Role.VECTOR)
        return (*self._projections, *biases, *((sinks,) if self.options.sinks else ()))

    @cached_property
    def _projections(self) -> tuple[Tensor, ...]:
        width, heads, head = self.width, self.heads.num_heads, self.heads.head_dim
        init, out_init = self.init.of_inputs(width), self.init.of_output(heads * head)
        kv_shape, kv_axes = (width, self.heads.num_kv_heads, head), ("embed", "kv_heads", "head")
        matrix = DecayClass.MATRIX
        return (
            Tensor("query", (width, heads, head), ("embed", "heads", "head"), init, matrix, Role.INPUT),
            Tensor("key", kv_shape, kv_axes, init, matrix, Role.INPUT),
            Tensor("value", kv_shape, kv_axes, init, matrix, Role.PAIRED_INPUT),
            Tensor("out", (heads, head, width), ("heads", "head", "embed"), out_init, matrix, Role.MIXER_OUTPUT),
        )

    @property
    def cache_entries(self) -> Mapping[str, CacheEntry]:
        """Return the keys and values of a token."""
        entry = CacheEntry((self.heads.num_kv_heads, self.heads.head_dim), ("kv_heads", None))
        return {"key": entry, "value": entry}

    def score_shapes(self, shard: Shard) -> ScoreShapes:
        """Return the shapes of the scores on one device."""
        heads, kv_heads = shard.split(self.heads.num_heads, "heads"), shard.split(self.heads.num_kv_heads, "kv_heads")
        return ScoreShapes(heads, kv_heads, self.heads.head_dim, self.heads.head_dim, self.scope)

    def causal_flops(self, length: int) -> int:
        """Return the FLOPs of the unmasked half of the scores."""
        return (FORWARD_FLOPS + BACKWARD_FLOPS) * length * self.heads.num_heads * self.heads.head_dim

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of queries, keys, values, output, scores and norms, and of gathered keys and values."""
        heads, kv_heads = shard.split(self.heads.num_heads, "heads"), shard.split(self.heads.num_kv_heads, "kv_heads")
        projections = shard.compute_bytes * self.heads.head_dim * (2 * heads + 2 * kv_heads)
        gathered = shard.compute_bytes * self.heads.head_dim * 2 * kv_heads * (self.key_copies(shard) - 1)
        norms = (heads + kv_heads) * self._saved_norm_bytes(shard)
        return projections + norms + gathered + self.score_costs(shard).saved_bytes

    def norm_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return the normalized queries and keys."""
        heads = {"query_norm": shard.split(self.heads.num_heads, "heads")}
        heads["key_norm"] = shard.split(self.heads.num_kv_heads, "kv_heads")
        norm = HiddenNorm(self.heads.head_dim, self.norm)
        return tuple(
            replace(gradient_input.nest(f"{name}."), num_bytes=count * gradient_input.num_bytes)
            for name, count in heads.items()
            if self.norms[name]
            for gradient_input in norm.gradient_inputs(shard)
        )

    def _saved_norm_bytes(self, shard: Shard) -> int:
        """Return the bytes that the norm of one head's queries or keys saves."""
        if self.options.query_key_norm is None:
            return 0
        return HiddenNorm(self.heads.head_dim, self.norm).saved_bytes(shard)

    def traffic(self, length: int) -> PartTraffic:
        """Return the sums of the output and of the input's gradient, and the gathered keys and values."""
        features = self.heads.head_dim * self.heads.num_kv_heads
        return PartTraffic(tensor_sums=2, recomputed_sums=1, separate_sums=2, context_features=features)
