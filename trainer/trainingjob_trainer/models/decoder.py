"""The model: a decoder in NNX, with the parameters that `trainingjob_api.network` declares.

NNX holds parameters and their axes. The model is split once into a function and a tree of arrays, and everything after
that is plain JAX. Layers are stored stacked, and run as one loop.

Shapes: M microbatches, S pipeline stages, B batch, L length, D model width, H query heads, G key and value heads, Q
query heads per key head, K head width, F MLP width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.attention import Attention as AttentionPart
from trainingjob_api.network.network import Block, Group, Network
from trainingjob_api.network.norm import RmsNorm
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.mlp import MLP, RoutedMLP, RoutingStats, zero_routing_stats
from trainingjob_trainer.models.params import DTYPES, add_params, make_param
from trainingjob_trainer.parallel.sharding import constrain

type Params = dict[str, Any]
"""A tree of arrays, nested like the modules."""


class HiddenStates(NamedTuple):
    """Hidden states and routing statistics that pass through the layers."""

    x: jax.Array
    """The residual stream [B, L, D]."""
    routing: RoutingStats | None
    """Routing statistics of each sequence so far. None: no layer has experts."""
    positions: jax.Array | None = None
    """Position of each token in its document [B, L]. None: its position in the sequence."""
    segments: jax.Array | None = None
    """Document of each token [B, L]. None: one in each sequence."""


@lru_cache(maxsize=1)
def split_model(model: Model, precision: Precision, memory: Memory) -> "SplitModel":
    """Return the model as functions over a tree of parameters.

    Tracing its shapes needs no device, and is the slowest part of a restart that loads its programs. A standby does it
    in advance, and the world reuses the result.
    """
    return SplitModel(resolve(model), precision, memory)


class SplitModel:
    """The decoder, split into structure and parameters. The rest of the trainer calls its three parts."""

    def __init__(self, network: Network, precision: Precision, memory: Memory) -> None:
        self.network = network
        self._memory = memory
        self._dtype = DTYPES[precision.compute]
        self._build = lambda seed: Decoder(network, precision, nnx.Rngs(seed))
        decoder = nnx.eval_shape(lambda: self._build(0))  # type: ignore[no-untyped-call]
        variables = nnx.split(decoder)[1]
        self._structures = {
            name: nnx.split(getattr(decoder, name))[0] for name in ("norm", *(group.name for group in network.groups))
        }
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

    def embed(
        self,
        params: Params,
        tokens_BL: jax.Array,
        positions_BL: jax.Array | None = None,
        segments_BL: jax.Array | None = None,
    ) -> HiddenStates:
        """Return the hidden states before the first layer. It reads `embedding` of the parameters alone."""
        x_BLD = constrain(embed_tokens(params["embedding"], tokens_BL, self._dtype), "batch", "length", None)
        routing = zero_routing_stats(x_BLD) if self.network.num_routed_layers else None
        return HiddenStates(x_BLD, routing, positions_BL, segments_BL)

    def run_layers(self, params: Params, hidden: HiddenStates) -> HiddenStates:
        """Return the hidden states after all layers."""
        for group in self.network.groups:
            hidden = run_layers(self._structures[group.name], params[group.name], hidden, self._memory)
        return hidden

    def run_stages(self, params: Params, streams: HiddenStates, num_stages: int) -> HiddenStates:
        """Return the hidden states of M microbatches after all layers, which lie on the stages of a pipeline.

        Raises:
            ValueError: the layers are of several groups.
        """
        (group,) = self.network.groups  # a stage holds a part of each group, which are in sequence
        stages = jax.tree.map(lambda leaf: leaf.reshape(num_stages, -1, *leaf.shape[1:]), params[group.name])

        def run_stage(stream: HiddenStates, layers: Any) -> HiddenStates:
            return run_layers(self._structures[group.name], layers, stream, self._memory)

        return run_pipeline(run_stage, stages, streams, num_stages)

    def logits(self, params: Params, x_BLD: jax.Array) -> jax.Array:
        """Return the logits [B, L, V] in float32 of the last layer's hidden states.

        It reads `norm` and `head` of the parameters, or `embedding` if that is the head too.
        """
        x_BLD = nnx.merge(self._structures["norm"], params["norm"])(x_BLD)
        if self.network.head:
            matrix, equation = params["head"], "BLD,DV->BLV"
        else:
            matrix, equation = params["embedding"], "BLD,VD->BLV"
        return jnp.einsum(equation, x_BLD, matrix.astype(self._dtype), preferred_element_type=jnp.float32)


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale, computed in float32."""

    scale: nnx.Param[Any]

    def __init__(self, part: RmsNorm, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.tensors, precision, rngs)
        self.epsilon = part.epsilon
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the values, normalized over the last dimension, in the compute format."""
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), range(x.ndim - 1))
        return (x * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(self.dtype)


class Attention(nnx.Module):
    """Causal grouped-query attention with rotary positions; scores and softmax in float32."""

    query: nnx.Param[Any]
    key: nnx.Param[Any]
    value: nnx.Param[Any]
    out: nnx.Param[Any]

    def __init__(self, part: AttentionPart, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.projections, precision, rngs)
        self.has_query_key_norm = part.query_key_norm is not None
        if part.query_key_norm:
            self.query_norm = RMSNorm(part.query_key_norm, precision, rngs)
            self.key_norm = RMSNorm(part.query_key_norm, precision, rngs)
        self.rope_theta = part.rope_theta
        self.dtype = DTYPES[precision.compute]

    def __call__(
        self, x_BLD: jax.Array, positions_BL: jax.Array | None = None, segments_BL: jax.Array | None = None
    ) -> jax.Array:
        """Return the attention's output, which is added to the residual."""
        B, L, _ = x_BLD.shape
        q_BLHK = jnp.einsum("BLD,DHK->BLHK", x_BLD, self.query[...].astype(self.dtype))
        k_BLGK = jnp.einsum("BLD,DGK->BLGK", x_BLD, self.key[...].astype(self.dtype))
        if self.has_query_key_norm:
            q_BLHK, k_BLGK = self.query_norm(q_BLHK), self.key_norm(k_BLGK)
        q_BLHK, k_BLGK = (apply_rope(x_BLHK, self.rope_theta, positions_BL) for x_BLHK in (q_BLHK, k_BLGK))
        v_BLGK = jnp.einsum("BLD,DGK->BLGK", x_BLD, self.value[...].astype(self.dtype))
        # A query attends to the keys of the whole sequence: keys and values of sharded sequences are all-gathered.
        q_BLHK = constrain(q_BLHK, "batch", "length", "heads", "head")
        k_BLGK, v_BLGK = (constrain(x_BLGK, "batch", None, "kv_heads", "head") for x_BLGK in (k_BLGK, v_BLGK))
        H, (G, K) = q_BLHK.shape[2], k_BLGK.shape[2:]
        q_BLGQK = (q_BLHK * K**-0.5).reshape(B, L, G, H // G, K)
        scores_BGQLM = jnp.einsum("BLGQK,BMGK->BGQLM", q_BLGQK, k_BLGK, preferred_element_type=jnp.float32)
        is_visible_BLM = jnp.tril(jnp.ones((L, L), bool))[None]
        if segments_BL is not None:
            is_visible_BLM &= segments_BL[:, :, None] == constrain(segments_BL, "batch", None)[:, None, :]
        scores_BGQLM = jnp.where(is_visible_BLM[:, None, None], scores_BGQLM, -jnp.inf)
        weights_BGQLM = jax.nn.softmax(scores_BGQLM, axis=-1).astype(self.dtype)
        x_BLGQK = jnp.einsum("BGQLM,BMGK->BLGQK", weights_BGQLM, v_BLGK)
        x_BLHK = x_BLGQK.reshape(B, L, H, K)
        return jnp.einsum("BLHK,HKD->BLD", x_BLHK, self.out[...].astype(self.dtype))


class Layer(nnx.Module):
    """Attention, then an MLP or experts, each with a norm before it and a residual around it."""

    def __init__(self, block: Block, precision: Precision, rngs: nnx.Rngs) -> None:
        self.attention_norm = RMSNorm(block.attention_norm, precision, rngs)
        self.attention = Attention(block.attention, precision, rngs)
        self.mlp_norm = RMSNorm(block.mlp_norm, precision, rngs)
        mlp = block.mlp
        self.mlp = RoutedMLP(mlp, precision, rngs) if isinstance(mlp, RoutedMlp) else MLP(mlp, precision, rngs)

    def __call__(self, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after this layer."""
        x_BLD, routing, positions_BL, segments_BL = stream
        x_BLD = x_BLD + self.attention(self.attention_norm(x_BLD), positions_BL, segments_BL)
        mlp_output = self.mlp(self.mlp_norm(x_BLD))
        if isinstance(mlp_output, tuple):
            mlp_output, layer_routing = mlp_output
            routing = jax.tree.map(jnp.add, routing, layer_routing)
        return stream._replace(x=constrain(x_BLD + mlp_output, "batch", "length", None), routing=routing)


class Decoder(nnx.Module):
    """The parameters of embedding, layers, norm and LM head."""

    def __init__(self, network: Network, precision: Precision, rngs: nnx.Rngs) -> None:
        self.embedding = make_param(network.embedding.tensor, precision, rngs)
        for group in network.groups:
            setattr(self, group.name, stack_layers(group, precision, rngs))
        self.norm = RMSNorm(network.norm, precision, rngs)
        if network.head:
            self.head = make_param(network.head.tensor, precision, rngs)


class Pattern(nnx.Module):
    """The layers of a pattern of several blocks. A layer's name is its position."""

    def __init__(self, blocks: Sequence[Block], precision: Precision, rngs: nnx.Rngs) -> None:
        self.names = tuple(map(str, range(len(blocks))))
        for name, block in zip(self.names, blocks, strict=True):
            setattr(self, name, Layer(block, precision, rngs))

    def __call__(self, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after all layers."""
        for name in self.names:
            stream = getattr(self, name)(stream)
        return stream


def stack_layers(group: Group, precision: Precision, rngs: nnx.Rngs) -> nnx.Module:
    """Return the layers of a group, whose parameters are stacked along a first dimension."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        blocks = group.pattern
        return Layer(blocks[0], precision, rngs) if len(blocks) == 1 else Pattern(blocks, precision, rngs)

    stacked = nnx.vmap(make, in_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
    layers: nnx.Module = stacked(rngs.split(group.repeats))
    return layers


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
        # The first constraint keeps the all-gather here: the partitioner would move it before `order_first_part`.
        tokens_BL = constrain(constrain(tokens_BL, "batch", "length"), None, None)
        nothing_VD = jnp.zeros_like(grads_BLD, shape=table_VD.shape, dtype=jnp.float32)
        sums_VD = constrain(nothing_VD, None, "embed").at[tokens_BL].add(grads_BLD.astype(jnp.float32))
        return constrain(sums_VD, None, "embed").astype(table_VD.dtype), None

    taken = jax.custom_vjp(take)
    taken.defvjp(forward, scatter_gradients)
    rows_BLD: jax.Array = taken(table_VD, tokens_BL)
    return rows_BLD


def run_layers(structure: Any, stacked: Any, stream: HiddenStates, memory: Memory) -> HiddenStates:
    """Return the hidden states after all layers of a structure, whose parameters are stacked along a first dim."""

    def run_layer(stream: HiddenStates, params: Any) -> tuple[HiddenStates, None]:
        return nnx.merge(structure, params)(stream), None

    if memory.remat == "full":
        run_layer = jax.checkpoint(run_layer, prevent_cse=False)  # a loop prevents it
    return jax.lax.scan(run_layer, stream, stacked)[0]


def run_pipeline(
    run_stage: Callable[[HiddenStates, Any], HiddenStates], stages: Any, streams: HiddenStates, num_stages: int
) -> HiddenStates:
    """Return the hidden states of microbatches after all stages (GPipe; Huang et al., arXiv 1811.06965).

    All stages work at once, each on another microbatch, which then moves to the next stage. In idle ticks a stage works
    on zeros, and the results of these are not used.
    """
    idle_ticks = PipelineSchedule(streams.x.shape[0], num_stages).idle_ticks
    # The name gives each stage its own kernels. Without it `map_shards` would run all stages on every device.
    run_all = jax.vmap(run_stage, spmd_axis_name="stage")

    def move(at_stages: jax.Array, entering: jax.Array) -> jax.Array:
        # No indexing: XLA cannot partition gathers and scatters over stages inside a partly manual shard_map.
        is_first = (jnp.arange(num_stages) == 0).reshape(-1, *[1] * entering.ndim)
        return jnp.where(is_first, entering[None], jnp.roll(at_stages, 1, axis=0))

    def tick(at_stages: HiddenStates, entering: HiddenStates) -> tuple[HiddenStates, HiddenStates]:
        moved: HiddenStates = jax.tree.map(move, at_stages, entering)
        moved = moved._replace(x=constrain(moved.x, "stages", "batch", "length", None))
        at_stages = run_all(moved, stages)
        tick_outputs = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, num_stages - 1, keepdims=False), at_stages)
        return at_stages, tick_outputs

    tick_inputs = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, idle_ticks), *[(0, 0)] * (leaf.ndim - 1)]), streams)
    idle = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, shape=(num_stages, *leaf.shape[1:])), streams)
    _, leaving = jax.lax.scan(tick, idle, tick_inputs)
    done: HiddenStates = jax.tree.map(lambda leaf: leaf[idle_ticks:], leaving)
    return done


def apply_rope(x_BLHK: jax.Array, theta: float, positions_BL: jax.Array | None = None) -> jax.Array:
    """Rotate pairs of features by an angle that grows with the position (Su et al., arXiv 2104.09864).

    A pair is one feature of each half of a head, as in Llama's published weights for transformers. Without positions,
    those of the sequence count.
    """
    L, half = x_BLHK.shape[1], x_BLHK.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    positions_BL = jnp.arange(L)[None] if positions_BL is None else positions_BL
    angles_BLK = positions_BL.astype(jnp.float32)[:, :, None] * frequencies[None, None, :]
    sin, cos = jnp.sin(angles_BLK)[:, :, None, :], jnp.cos(angles_BLK)[:, :, None, :]
    first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BLHK.dtype)


def _to_dict(variables: Any) -> Params:
    """Return the arrays of NNX variables as nested dicts."""
    pure: Params = nnx.to_pure_dict(variables)
    return pure
