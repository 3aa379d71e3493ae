"""The model: a Llama-style decoder in NNX, written with explicit shapes and logical axes.

NNX holds parameters and their axes. The model is split once into a function and a tree of arrays, and everything after
that is plain JAX. Layers are stored stacked, whether they run as a loop or unrolled, so that a checkpoint fits both.

Shapes: M microbatches, S pipeline stages, B batch, L length, D model width, H query heads, G key and value heads, Q
query heads per key head, K head width, F MLP width, V vocabulary.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.mlp import MLP, RoutedMLP, RoutingStats, zero_routing_stats
from trainingjob_trainer.models.params import DTYPES, make_param
from trainingjob_trainer.parallel.sharding import constrain

type Params = dict[str, Any]
"""A tree of arrays, nested like the modules."""


class HiddenStates(NamedTuple):
    """Hidden states and routing statistics that pass through the layers."""

    x: jax.Array
    """The residual stream [B, L, D]."""
    routing: RoutingStats | None
    """Routing statistics of each sequence so far. None: no layer has experts."""


@lru_cache(maxsize=1)
def split_model(model: Model, precision: Precision, memory: Memory) -> "SplitModel":
    """Return the model as functions over a tree of parameters.

    Tracing its shapes needs no device, and is the slowest part of a restart that loads its programs. A standby does it
    in advance, and the world reuses the result.
    """
    return SplitModel(model, precision, memory)


class SplitModel:
    """The decoder, split into structure and parameters. The rest of the trainer calls its three parts."""

    def __init__(self, model: Model, precision: Precision, memory: Memory) -> None:
        self._model = model
        self._memory = memory
        self._build = lambda seed: Decoder(model, precision, nnx.Rngs(seed))
        self._structure, variables = nnx.split(nnx.eval_shape(lambda: self._build(0)))  # type: ignore[no-untyped-call]
        self.shapes: Params = _to_dict(variables)
        self.axes: Params = _to_dict(
            jax.tree.map(
                lambda variable: variable.get_metadata("out_sharding"),
                variables,
                is_leaf=lambda node: isinstance(node, nnx.Variable),
            )
        )

    def init(self, seed: int) -> Params:
        """Return the initial parameters. They depend on the seed alone, not on the mesh."""
        return _to_dict(nnx.split(self._build(seed))[1])  # type: ignore[no-untyped-call]

    def apply(self, params: Params, tokens_BL: jax.Array) -> jax.Array:
        """Return the logits [B, L, V] in float32 that predict the next token of each position."""
        return self.logits(params, self.run_layers(params, self.embed(params, tokens_BL)).x)

    def embed(self, params: Params, tokens_BL: jax.Array) -> HiddenStates:
        """Return the hidden states before the first layer."""
        x_BLD = self._merge(params).embed(tokens_BL)
        return HiddenStates(x_BLD, zero_routing_stats(x_BLD) if self._model.experts else None)

    def run_layers(self, params: Params, hidden: HiddenStates) -> HiddenStates:
        """Return the hidden states after all layers."""
        return run_layers(self._merge(params).layers, hidden, self._memory)

    def run_stages(self, params: Params, streams: HiddenStates, num_stages: int) -> HiddenStates:
        """Return the hidden states of M microbatches after all layers, which lie on the stages of a pipeline."""
        structure, stacked = nnx.split(self._merge(params).layers)
        stages = jax.tree.map(lambda leaf: leaf.reshape(num_stages, -1, *leaf.shape[1:]), stacked)

        def run_stage(stream: HiddenStates, layers: Any) -> HiddenStates:
            return run_layers(nnx.merge(structure, layers), stream, self._memory)

        return run_pipeline(run_stage, stages, streams, num_stages)

    def logits(self, params: Params, x_BLD: jax.Array) -> jax.Array:
        """Return the logits [B, L, V] in float32 of the last layer's hidden states."""
        return self._merge(params).logits(x_BLD)

    def _merge(self, params: Params) -> "Decoder":
        decoder: Decoder = nnx.merge(self._structure, params)
        return decoder


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale, computed in float32."""

    def __init__(self, model: Model, precision: Precision) -> None:
        scale = jnp.ones(model.embed_dim, DTYPES[precision.params])
        self.scale = nnx.Param(scale, out_sharding=("norm",), eager_sharding=False)
        self.epsilon = model.norm_epsilon
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return the normalized hidden states in the compute format."""
        x_BLD = x_BLD.astype(jnp.float32)
        mean_square_BL1 = jnp.mean(jnp.square(x_BLD), axis=-1, keepdims=True)
        scale_11D = self.scale[...].astype(jnp.float32)[None, None, :]
        return (x_BLD * jax.lax.rsqrt(mean_square_BL1 + self.epsilon) * scale_11D).astype(self.dtype)


class Attention(nnx.Module):
    """Causal grouped-query attention with rotary positions; scores and softmax in float32."""

    def __init__(self, model: Model, precision: Precision, rngs: nnx.Rngs) -> None:
        D, H, G, K = model.embed_dim, model.num_heads, model.num_kv_heads, model.head_dim
        params = DTYPES[precision.params]
        self.query = make_param(rngs, (D, H, K), ("embed", "heads", "head"), D**-0.5, params)
        self.key = make_param(rngs, (D, G, K), ("embed", "kv_heads", "head"), D**-0.5, params)
        self.value = make_param(rngs, (D, G, K), ("embed", "kv_heads", "head"), D**-0.5, params)
        self.out = make_param(rngs, (H, K, D), ("heads", "head", "embed"), (H * K) ** -0.5, params)
        self.rope_theta = model.rope_theta
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return the attention's output, which is added to the residual."""
        B, L, _ = x_BLD.shape
        q_BLHK = apply_rope(jnp.einsum("BLD,DHK->BLHK", x_BLD, self.query[...].astype(self.dtype)), self.rope_theta)
        k_BLGK = apply_rope(jnp.einsum("BLD,DGK->BLGK", x_BLD, self.key[...].astype(self.dtype)), self.rope_theta)
        v_BLGK = jnp.einsum("BLD,DGK->BLGK", x_BLD, self.value[...].astype(self.dtype))
        # A query attends to the keys of the whole sequence: keys and values of sharded sequences are all-gathered.
        q_BLHK = constrain(q_BLHK, "batch", "length", "heads", "head")
        k_BLGK, v_BLGK = (constrain(x_BLGK, "batch", None, "kv_heads", "head") for x_BLGK in (k_BLGK, v_BLGK))
        H, (G, K) = q_BLHK.shape[2], k_BLGK.shape[2:]
        q_BLGQK = (q_BLHK * K**-0.5).reshape(B, L, G, H // G, K)
        scores_BGQLM = jnp.einsum("BLGQK,BMGK->BGQLM", q_BLGQK, k_BLGK, preferred_element_type=jnp.float32)
        causal_LM = jnp.tril(jnp.ones((L, L), bool))
        scores_BGQLM = jnp.where(causal_LM[None, None, None], scores_BGQLM, -jnp.inf)
        weights_BGQLM = jax.nn.softmax(scores_BGQLM, axis=-1).astype(self.dtype)
        x_BLGQK = jnp.einsum("BGQLM,BMGK->BLGQK", weights_BGQLM, v_BLGK)
        x_BLHK = x_BLGQK.reshape(B, L, H, K)
        return jnp.einsum("BLHK,HKD->BLD", x_BLHK, self.out[...].astype(self.dtype))


class Layer(nnx.Module):
    """Attention, then an MLP or experts, each with a norm before it and a residual around it."""

    def __init__(self, model: Model, precision: Precision, rngs: nnx.Rngs) -> None:
        self.attention_norm = RMSNorm(model, precision)
        self.attention = Attention(model, precision, rngs)
        self.mlp_norm = RMSNorm(model, precision)
        experts = model.experts
        self.mlp = RoutedMLP(model, precision, experts, rngs) if experts else MLP(model, precision, rngs)

    def __call__(self, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after this layer."""
        x_BLD, routing = stream
        x_BLD = x_BLD + self.attention(self.attention_norm(x_BLD))
        mlp_output = self.mlp(self.mlp_norm(x_BLD))
        if isinstance(mlp_output, tuple):
            mlp_output, layer_routing = mlp_output
            routing = jax.tree.map(jnp.add, routing, layer_routing)
        return HiddenStates(constrain(x_BLD + mlp_output, "batch", "length", None), routing)


class Decoder(nnx.Module):
    """Embedding, layers, norm, LM head."""

    def __init__(self, model: Model, precision: Precision, rngs: nnx.Rngs) -> None:
        V, D, params = model.vocab_size, model.embed_dim, DTYPES[precision.params]
        self.embedding = make_param(rngs, (V, D), ("vocab", "embed"), model.init_scale, params)
        stacked = nnx.vmap(
            lambda rngs: Layer(model, precision, rngs), in_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"}
        )
        self.layers = stacked(rngs.split(model.num_layers))  # type: ignore[no-untyped-call]
        self.norm = RMSNorm(model, precision)
        if not model.tie_embeddings:
            self.head = make_param(rngs, (D, V), ("embed", "vocab"), D**-0.5, params)
        self.tied = model.tie_embeddings
        self.dtype = DTYPES[precision.compute]

    def embed(self, tokens_BL: jax.Array) -> jax.Array:
        """Return the hidden states before the first layer."""
        return constrain(embed_tokens(self.embedding[...], tokens_BL, self.dtype), "batch", "length", None)

    def logits(self, x_BLD: jax.Array) -> jax.Array:
        """Return the logits [B, L, V] in float32 of the hidden states after the last layer."""
        x_BLD = self.norm(x_BLD)
        if self.tied:
            return jnp.einsum(
                "BLD,VD->BLV", x_BLD, self.embedding[...].astype(self.dtype), preferred_element_type=jnp.float32
            )
        return jnp.einsum("BLD,DV->BLV", x_BLD, self.head[...].astype(self.dtype), preferred_element_type=jnp.float32)


def embed_tokens(table_VD: jax.Array, tokens_BL: jax.Array, dtype: Any) -> jax.Array:
    """Return the embeddings of tokens in a format; their gradients are summed in float32.

    A token may occur thousands of times in a batch. In bfloat16 such a sum stalls at 256 times its addends.
    """

    def take(table_VD: jax.Array, tokens_BL: jax.Array) -> jax.Array:
        # XLA cannot partition a gather from a sharded table inside a partly manual shard_map: all-gather it first.
        return jnp.take(constrain(table_VD.astype(dtype), None, None), tokens_BL, axis=0)

    def forward(table_VD: jax.Array, tokens_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
        return take(table_VD, tokens_BL), tokens_BL

    def scatter_gradients(tokens_BL: jax.Array, grads_BLD: jax.Array) -> tuple[jax.Array, None]:
        # Each device sums a part of the width over all tokens, so that no all-reduce of the whole table is needed.
        # The constraints move one axis after the other: XLA cannot exchange both at once.
        grads_BLD = constrain(constrain(grads_BLD, None, "length", "batch"), None, None, "embed")
        tokens_BL = constrain(tokens_BL, None, None)
        nothing_VD = jnp.zeros_like(grads_BLD, shape=table_VD.shape, dtype=jnp.float32)
        sums_VD = constrain(nothing_VD, None, "embed").at[tokens_BL].add(grads_BLD.astype(jnp.float32))
        return constrain(sums_VD, None, "embed").astype(table_VD.dtype), None

    taken = jax.custom_vjp(take)
    taken.defvjp(forward, scatter_gradients)
    rows_BLD: jax.Array = taken(table_VD, tokens_BL)
    return rows_BLD


def run_layers(layers: nnx.Module, stream: HiddenStates, memory: Memory) -> HiddenStates:
    """Return the hidden states after all layers, whose parameters are stacked along a first dimension."""
    structure, stacked = nnx.split(layers)

    def run_layer(stream: HiddenStates, params: Any) -> tuple[HiddenStates, None]:
        return nnx.merge(structure, params)(stream), None

    if memory.remat == "full":
        run_layer = jax.checkpoint(run_layer, prevent_cse=not memory.scan)
    if memory.scan:
        return jax.lax.scan(run_layer, stream, stacked)[0]
    for number in range(jax.tree.leaves(stacked)[0].shape[0]):
        stream, _ = run_layer(stream, jax.tree.map(lambda leaf, number=number: leaf[number], stacked))
    return stream


def run_pipeline(
    run_stage: Callable[[HiddenStates, Any], HiddenStates], stages: Any, streams: HiddenStates, num_stages: int
) -> HiddenStates:
    """Return the hidden states of microbatches after all stages (GPipe; Huang et al., arXiv 1811.06965).

    All stages work at once, each on another microbatch, which then moves to the next stage: M microbatches take M + S -
    1 ticks. In the first and the last S - 1 ticks some stages work on zeros, and the results of these are not used.
    """
    # The name gives each stage its own kernels. Without it `map_shards` would run all stages on every device.
    run_all = jax.vmap(run_stage, spmd_axis_name="stage")

    def move(at_stages: jax.Array, entering: jax.Array) -> jax.Array:
        # No indexing: XLA cannot partition gathers and scatters over stages inside a partly manual shard_map.
        is_first = (jnp.arange(num_stages) == 0).reshape(-1, *[1] * entering.ndim)
        return jnp.where(is_first, entering[None], jnp.roll(at_stages, 1, axis=0))

    def tick(at_stages: HiddenStates, entering: HiddenStates) -> tuple[HiddenStates, HiddenStates]:
        x_SBLD, routing = jax.tree.map(move, at_stages, entering)
        moved = HiddenStates(constrain(x_SBLD, "stages", "batch", "length", None), routing)
        at_stages = run_all(moved, stages)
        tick_outputs = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, num_stages - 1, keepdims=False), at_stages)
        return at_stages, tick_outputs

    tick_inputs = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, num_stages - 1), *[(0, 0)] * (leaf.ndim - 1)]), streams)
    idle = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, shape=(num_stages, *leaf.shape[1:])), streams)
    _, leaving = jax.lax.scan(tick, idle, tick_inputs)
    done: HiddenStates = jax.tree.map(lambda leaf: leaf[num_stages - 1 :], leaving)
    return done


def apply_rope(x_BLHK: jax.Array, theta: float) -> jax.Array:
    """Rotate pairs of features by an angle that grows with the position (Su et al., arXiv 2104.09864).

    A pair is one feature of each half of a head, as in Llama's published weights for transformers.
    """
    L, half = x_BLHK.shape[1], x_BLHK.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(L, dtype=jnp.float32)[:, None] * frequencies[None, :]
    sin, cos = jnp.sin(angles)[None, :, None, :], jnp.cos(angles)[None, :, None, :]
    first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BLHK.dtype)


def _to_dict(variables: Any) -> Params:
    """Return the arrays of NNX variables as nested dicts."""
    pure: Params = nnx.to_pure_dict(variables)
    return pure
