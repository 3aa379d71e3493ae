"""The three parts of the model in the order of a step: embedding, layers, losses.

A pipeline has the hidden states of each microbatch, and any other mesh has those of one microbatch.

Shapes: M microbatches, R sequences, L length, S stages, V vocabulary, D model width.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainingjob_trainer.models.decoder import HiddenStates, Params, SplitModel
from trainingjob_trainer.models.mlp import RoutingStats
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.state import Batch


class LossSums(NamedTuple):
    """Unnormalized sums over sequences; divide by `weight` for the mean per predicted token."""

    loss: jax.Array
    """Sum of cross-entropies."""
    weight: jax.Array
    """Number of predicted tokens that count."""
    routing: RoutingStats | None
    """Routing statistics of all layers, summed over predicted tokens. None: there are no experts."""


class PipelineParts:
    """The parts of a model on the pipeline stages of a mesh."""

    def __init__(self, model: SplitModel, mesh: Mesh) -> None:
        self._model = model
        self._num_stages = mesh.shape["stage"]

    def split_params(self, params: Params) -> tuple[Params, Params, Params]:
        """Return the parameters of each part. A tied embedding is in the first and in the last."""
        network = self._model.network
        embedding = {"embedding": params["embedding"]}
        layers = {group.name: params[group.name] for group in network.groups}
        last = {name: param for name, param in params.items() if name not in embedding | layers}
        return embedding, layers, last if network.head else embedding | last

    def embed(self, params: Params, rows: Batch) -> HiddenStates:
        """Return the hidden states before the first layer for microbatches [M, R, L + 1]."""
        if self._num_stages == 1:
            return self._model.embed(params, rows.tokens[0, :, :-1])
        streams: HiddenStates = jax.lax.map(lambda tokens: self._model.embed(params, tokens[:, :-1]), rows.tokens)
        return streams

    def run_layers(self, params: Params, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after the last layer."""
        if self._num_stages == 1:
            return self._model.run_layers(params, stream)
        return self._model.run_stages(params, stream, self._num_stages)

    def sum_losses(self, params: Params, stream: HiddenStates, rows: Batch) -> LossSums:
        """Return the loss sums of microbatches [M, R, L + 1] from the hidden states after the last layer."""
        if self._num_stages == 1:
            (tokens,), (weights,) = rows
            loss, weight = sum_losses(self._model.logits(params, stream.x), tokens, weights)
            return LossSums(loss, weight, sum_routing(stream, weights))
        # The stages share the LM head: each computes every S-th microbatch.
        by_tick = jax.tree.map(lambda leaf: leaf.reshape(-1, self._num_stages, *leaf.shape[1:]), (stream.x, rows))
        y_TSRLD, (tokens, weights) = by_tick
        ticks = (
            constrain(y_TSRLD, None, "stages", "batch", "length", None),
            Batch(constrain(tokens, None, "stages", "batch", None), constrain(weights, None, "stages", "batch")),
        )

        def sum_tick(sums: Any, turn: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            def one(y_RLD: jax.Array, rows: Batch) -> tuple[jax.Array, jax.Array]:
                return sum_losses(self._model.logits(params, y_RLD), rows.tokens, rows.weights)

            found = jax.vmap(one)(*turn)
            return jax.tree.map(lambda total, new: total + jnp.sum(new), sums, found), None

        zero = jnp.zeros(())
        (loss, weight), _ = jax.lax.scan(sum_tick, (zero, zero), ticks)
        return LossSums(loss, weight, sum_routing(stream, rows.weights))


def sum_losses(logits_RLV: jax.Array, tokens: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the summed cross-entropy of sequences [R, L + 1], and the number of predicted tokens that count."""
    # Comparison instead of a gather, which XLA cannot partition over the vocabulary in a partly manual shard_map.
    is_target_RLV = tokens[:, 1:, None] == jnp.arange(logits_RLV.shape[-1])[None, None, :]
    target_logits_RL = jnp.sum(jnp.where(is_target_RLV, logits_RLV, 0.0), axis=-1)
    losses_RL = jax.nn.logsumexp(logits_RLV, axis=-1) - target_logits_RL
    # The loss of a padding sequence may be infinite, and 0 x infinity must not reach the sum.
    counted_R1 = weights[:, None]
    total = jnp.sum(jnp.where(counted_R1 > 0, losses_RL * counted_R1, 0.0))
    return total, jnp.sum(weights) * losses_RL.shape[1]


def sum_routing(stream: HiddenStates, weights: jax.Array) -> RoutingStats | None:  # None: there are no experts
    """Return the routing statistics of weighted sequences, summed over their predicted tokens."""
    if stream.routing is None:
        return None
    length = stream.x.shape[-2]
    return RoutingStats(*(length * jnp.sum(jnp.where(weights > 0, stats * weights, 0.0)) for stats in stream.routing))
