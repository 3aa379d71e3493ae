"""The model: a decoder in NNX, with the parameters that `trainingjob_api.network` declares.

NNX holds parameters and their axes. The model is split once into a function and a tree of arrays, and everything after
that is plain JAX.

Shapes: M microbatches, B batch, L length, D model width, V vocabulary.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.embedding import Logits
from trainingjob_api.network.multi_token_prediction import PREDICTION
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.parallelism import Parallelism, Pipeline
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.chunked_loss import LmHead
from trainingjob_trainer.models.decoding_cache import Cache, list_positions
from trainingjob_trainer.models.dropout import drop_features, use_seeds
from trainingjob_trainer.models.embedding import add_positions, embed_tokens
from trainingjob_trainer.models.layers import HiddenStates, decode_layers, run_layers, stack_layers
from trainingjob_trainer.models.norm import Norm
from trainingjob_trainer.models.params import DTYPES, add_params
from trainingjob_trainer.models.pipeline import decode_in_pipeline, run_circular_pipeline, run_pipeline
from trainingjob_trainer.models.prediction import run_module, stack_modules
from trainingjob_trainer.models.routed_mlp import zero_routing_stats
from trainingjob_trainer.models.trainable import ParamSplit
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.parallel.token_order import find_places

type Params = dict[str, Any]
"""A tree of arrays, nested like the modules."""


def split_model_of(spec: TrainingJobSpec) -> "SplitModel":
    """Return the model of a job as functions over a tree of parameters. Calls for one spec share the result."""
    network = resolve_network(spec)
    return split_model(network, spec.precision, spec.memory, spec.slices.accelerator, spec.parallelism)


@lru_cache(maxsize=2)  # a student and its teacher
def split_model(
    network: Network,
    precision: Precision,
    memory: Memory,
    accelerator: str,
    parallelism: Parallelism = Parallelism(),  # noqa: B008  # it is immutable
) -> "SplitModel":
    """Return a network as functions over a tree of parameters, with the kernels of an accelerator.

    Tracing its shapes needs no device, and is the slowest part of a restart that loads its programs. A standby does it
    in advance, and the world reuses the result.
    """
    shards_stream = parallelism.shard_stream_over_tensor
    placed = network.on(accelerator, parallelism.context.exchange, shards_stream=shards_stream)
    return SplitModel(placed, precision, memory, parallelism.pipeline)


class SplitModel:
    """The decoder, split into structure and parameters. The rest of the trainer calls its three parts."""

    def __init__(
        self, network: Network, precision: Precision, memory: Memory, pipeline: Pipeline | None = None
    ) -> None:
        self.network = network
        self.precision = precision
        self.memory = memory
        self.param_split = ParamSplit(network)
        self.pipeline = pipeline or Pipeline()
        self._dtype, self._logits_dtype = DTYPES[precision.compute], DTYPES[precision.logits]
        self._build = lambda seed: Decoder(network, precision, nnx.Rngs(seed))
        decoder = nnx.eval_shape(lambda: self._build(0))  # type: ignore[no-untyped-call]
        variables = nnx.split(decoder)[1]
        parts = ("norm", *(group.name for group in network.groups), *([PREDICTION] if network.prediction else []))
        self._structures = {name: nnx.split(getattr(decoder, name))[0] for name in parts}
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
        seeds_B: jax.Array | None = None,
        loss_lengths_B: jax.Array | None = None,
    ) -> HiddenStates:
        """Return the hidden states before the first layer. It reads the tables of the parameters alone."""
        x_BLD = embed_tokens(params["embedding"], tokens_BL, self._dtype)
        if self.network.embedding.scale != 1:
            x_BLD *= self.network.embedding.scale
        if self.network.embedding.max_positions:
            x_BLD = add_positions(params["positions"], x_BLD, find_places(self.network.exchange, x_BLD, positions_BL))
        with use_seeds(seeds_B, find_places(self.network.exchange, x_BLD, None)):
            x_BLD = drop_features(x_BLD, self.network.embedding.dropout, "embedding")
        x_BLD = constrain(x_BLD, "batch", "length", None)
        routing = zero_routing_stats(x_BLD, self.network)
        return HiddenStates(x_BLD, routing, positions_BL, segments_BL, seeds_B, loss_lengths=loss_lengths_B)

    def run_layers(self, params: Params, hidden: HiddenStates, tapped: Sequence[int] = ()) -> HiddenStates:
        """Return the hidden states after all layers. `tapped`: the layers whose outputs are collected."""
        for group in self.network.groups:
            hidden = run_layers(self._structures[group.name], params[group.name], hidden, self.memory, tapped)
        return hidden

    def run_prediction(self, module_params: Params, stream: HiddenStates, embedded_RLD: jax.Array) -> HiddenStates:
        """Return the hidden states after one module of multi-token prediction, whose parameters are given."""
        return run_module(self._structures[PREDICTION], module_params, stream, embedded_RLD, self.memory.saved)

    def run_stages(
        self, params: Params, streams: HiddenStates, num_stages: int, tapped: Sequence[int] = ()
    ) -> HiddenStates:
        """Return the hidden states of M microbatches after all layers, which lie on the stages of a pipeline.

        Raises:
            ValueError: the layers are of several groups.
        """
        (group,) = self.network.groups  # a stage holds a part of each group, which are in sequence
        schedule = self.pipeline.plan(streams.x.shape[0], num_stages)
        run = run_circular_pipeline if schedule.repeats > 1 else run_pipeline
        return run(partial(self.run_stage, tapped=tapped), params[group.name], streams, schedule)

    def run_stage(self, stream: HiddenStates, layers: Params, tapped: Sequence[int] = ()) -> HiddenStates:
        """Return the hidden states after some layers of the only group, whose parameters are stacked."""
        return run_layers(self._structures[self.network.groups[0].name], layers, stream, self.memory, tapped)

    def decode(
        self, params: Params, tokens_BL: jax.Array, cache: Cache, first: jax.Array, num_stages: int = 1
    ) -> tuple[jax.Array, Cache]:
        """Return the hidden states [B, L, D] of tokens from position `first` on, and the cache with these tokens."""
        hidden = self.embed(params, tokens_BL, list_positions(tokens_BL, first))
        written = {}
        for group in self.network.groups:
            run = partial(decode_layers, self._structures[group.name], first=first)
            layers, saved = params[group.name], cache[group.name]
            if num_stages == 1:
                hidden, saved = run(layers, hidden, saved)
            else:
                layers, saved = jax.tree.map(
                    lambda leaf: leaf.reshape(num_stages, -1, *leaf.shape[1:]), (layers, saved)
                )
                hidden, saved = decode_in_pipeline(run, layers, hidden, saved, num_stages)
                saved = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), saved)
            written[group.name] = saved
        return hidden.x, written

    def logits(self, params: Params, x_BLD: jax.Array) -> jax.Array:
        """Return the logits [B, L, V] in float32 of the last layer's hidden states.

        It reads `norm` and `head` of the parameters, or `embedding` if that is the head too.
        """
        head, x_BLD, matrix = self.read_out(params, x_BLD)
        return head.finish(head.multiply(x_BLD, matrix.astype(self._dtype)))

    def read_out(self, params: Params, x: jax.Array) -> tuple[LmHead, jax.Array, jax.Array]:
        """Return what logits are computed from: the LM head, normalized hidden states, and the stored matrix."""
        x = nnx.merge(self._structures["norm"], params["norm"])(x)
        head = self.network.head
        vocab_dim, name = (0, "embedding") if head.is_tied else (1, "head")
        finish = partial(finish_logits, options=head.options)
        is_trained = self.param_split.is_trained(name)
        return LmHead(vocab_dim, self._dtype, self._logits_dtype, finish, is_trained), x, params[name]


class Decoder(nnx.Module):
    """The parameters of embedding, layers, norm and LM head."""

    def __init__(self, network: Network, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, network.embedding.tensors, precision, rngs)
        for group in network.groups:
            setattr(self, group.name, stack_layers(group, precision, rngs))
        self.norm = Norm(network.norm, precision, rngs)
        add_params(self, network.head.tensors, precision, rngs)
        if network.prediction:  # last, so that other initial values do not depend on it
            setattr(self, PREDICTION, stack_modules(network.prediction, precision, rngs))


def finish_logits(logits_BLV: jax.Array, options: Logits) -> jax.Array:
    """Return the logits in float32 with their factor, below their limit."""
    logits_BLV = logits_BLV.astype(jnp.float32)
    if options.scale != 1:
        logits_BLV *= options.scale
    return options.soft_cap * jnp.tanh(logits_BLV / options.soft_cap) if options.soft_cap else logits_BLV


def _to_dict(variables: Any) -> Params:
    """Return the arrays of NNX variables as nested dicts."""
    pure: Params = nnx.to_pure_dict(variables)
    return pure
