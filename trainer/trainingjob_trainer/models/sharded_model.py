"""The model on one mesh, which objectives call: hidden states, and the cross-entropies of tokens.

Layers lie on the pipeline stages of the mesh, if it has any. The first dim of a batch's arrays is that of the
microbatches; its size is 1 on a mesh without stages.

Shapes: M microbatches, R sequences, L length, S stages, V vocabulary, D model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainingjob_api.loss_chunks import count_loss_chunks
from trainingjob_api.network.multi_token_prediction import PREDICTION
from trainingjob_api.sharding import count_shards, shards_of_dim
from trainingjob_trainer.models.chunked_loss import (
    HIDDEN,
    LmHead,
    StoredStates,
    TeacherStates,
    sum_losses,
    token_losses,
)
from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.divergence import SoftLoss, StoredShares
from trainingjob_trainer.models.dropout import mix_name
from trainingjob_trainer.models.layers import HiddenStates, add_taps
from trainingjob_trainer.models.prediction import Shifted, shift
from trainingjob_trainer.models.routed_mlp import RoutingStats
from trainingjob_trainer.models.router import find_loss_lengths
from trainingjob_trainer.models.token_losses import TeacherLogits, TeacherShares, TokenLosses, losses_of_logits
from trainingjob_trainer.parallel.collective_order import (
    order_collectives,
    order_earlier_part,
    order_first_part,
    order_last_part,
    order_later_part,
)
from trainingjob_trainer.parallel.sharding import Axes, constrain, reshard
from trainingjob_trainer.parallel.token_order import to_mesh_order, to_sequence_order

STREAM: Axes = (*HIDDEN[:3], "stream_length", None)
"""The residual stream by tick, if `tensor` shards it along the sequence."""


class Hidden(NamedTuple):
    """Hidden states after the last layer."""

    x: jax.Array
    """[M, R, L, D] in the compute format, with the tokens in the order of the mesh."""
    routing: RoutingStats | None
    """Routing statistics of each sequence [M, R], summed over layers. None: no layer has experts."""
    embedded: jax.Array | None = None
    """Hidden states before the first layer [M, R, L, D]. None: the model predicts no further tokens."""
    tapped: jax.Array | None = None
    """Outputs of the tapped layers [M, R, N, L, D], like `x`. None: there are none."""


class TeacherHidden(NamedTuple):
    """The hidden states of a teacher of the same vocabulary, and what its logits and their loss need."""

    model: "ShardedModel"
    params: Params
    """Those of the LM head, without gradient."""
    hidden: Hidden
    soft: SoftLoss

    @property
    def per_token(self) -> jax.Array:
        """Return the arrays of tokens [M, R, L, ...] in the order of the mesh."""
        return self.hidden.x

    def attach(self, x_RLD: jax.Array) -> TeacherLogits:
        """Return what the loss of one microbatch needs, whose hidden states are given."""
        return TeacherLogits(jax.lax.stop_gradient(self.model.logits(self.params, x_RLD)), self.soft)


class TeacherStored(NamedTuple):
    """The stored probabilities of a teacher of the same vocabulary, and how much of the loss they make."""

    per_token: StoredShares
    """Those of tokens [M, R, L], in the order of the mesh."""
    soft: SoftLoss

    def attach(self, stored: StoredShares) -> TeacherShares:
        """Return what the loss of one microbatch needs, whose stored probabilities are given."""
        return TeacherShares(stored, self.soft)


class ShardedModel:
    """A model on the devices and pipeline stages of a mesh."""

    def __init__(self, model: SplitModel, mesh: Mesh) -> None:
        self.network = model.network
        self._model = model
        self._mesh = mesh
        self._num_stages = mesh.shape["stage"]
        self._context = mesh.shape["context"]
        self._vocab_axis = "vocab"
        self.has_predicted = False
        """Whether the modules of further tokens have run."""

    def run(
        self,
        params: Params,
        tokens_MRL: jax.Array,
        positions_MRL: jax.Array | None = None,
        segments_MRL: jax.Array | None = None,
        seeds_MR: jax.Array | None = None,
        tapped: Sequence[int] = (),
        *,
        weights_MRL: jax.Array | None = None,
    ) -> Hidden:
        """Return the hidden states after the last layer. `seeds_MR`: those of dropout; None: nothing is dropped.

        `tapped`: layers, counted from 1, whose outputs are returned too. `weights_MRL`: loss weights, without which
        routing statistics count padding too.
        """
        batch = tokens_MRL, positions_MRL, segments_MRL, seeds_MR, self.find_loss_lengths(weights_MRL)
        stream = self.embed(self._table_params(params), *batch)
        stream = add_taps(stream, tapped)
        embedded = stream.x if self.network.prediction else None
        if self._num_stages > 1:
            stream = self._model.run_stages(params, stream, self._num_stages, tapped)
            return Hidden(stream.x, stream.routing, embedded, stream.taps.outputs if stream.taps else None)
        stream = self._model.run_layers(params, jax.tree.map(lambda leaf: leaf[0], stream), tapped)
        x, routing, taps = jax.tree.map(lambda leaf: leaf[None], (stream.x, stream.routing, stream.taps))
        return Hidden(x, routing, embedded, taps.outputs if taps else None)

    def run_batch(self, params: Params, batch: Any, tapped: Sequence[int] = ()) -> Hidden:
        """Return the hidden states of a batch that is trained: routing statistics count no padding."""
        tokens = batch.tokens, batch.positions, batch.segment_ids, batch.seeds
        return self.run(params, *tokens, tapped, weights_MRL=batch.loss_weights)

    def find_loss_lengths(self, weights_MRL: jax.Array | None) -> jax.Array | None:  # None: nothing reads them
        """Return the tokens of each sequence that routing statistics count, int32 [M, R]."""
        return None if weights_MRL is None or not self.network.num_routed_layers else find_loss_lengths(weights_MRL)

    def read_like(self, model: SplitModel) -> "ShardedModel":
        """Return another model of the same vocabulary whose logits are split over the devices as those of this one."""
        return ShardedModel(model, self._mesh)

    def embed(
        self,
        table: Params,
        tokens_MRL: jax.Array,
        positions_MRL: jax.Array | None,
        segments_MRL: jax.Array | None,
        seeds_MR: jax.Array | None,
        loss_lengths_MR: jax.Array | None = None,
    ) -> HiddenStates:
        """Return the hidden states before the first layer, from the parameters of the embedding."""
        embed = order_first_part(self._embed, self._mesh)
        tokens_MRL, positions_MRL, segments_MRL = self.order_tokens(tokens_MRL, positions_MRL, segments_MRL)
        return embed(table, tokens_MRL, positions_MRL, segments_MRL, seeds_MR, loss_lengths_MR)

    def order_tokens(self, *arrays_MRL: jax.Array | None) -> tuple[Any, ...]:
        """Return arrays of tokens in the order of the mesh. None: unchanged."""
        return jax.tree.map(self._to_mesh_order, arrays_MRL)  # type: ignore[no-any-return]

    def run_before[T](self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function computes in the read-out before another one; see `order_earlier_part`."""
        return order_earlier_part(function, self._mesh)(*arguments)

    def run_after[T](self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function computes in the read-out after another one; see `order_later_part`."""
        return order_later_part(function, self._mesh)(*arguments)

    def after[T](self, tree: T, before: Any) -> T:
        """Return arrays for the part that comes after another; see `order_collectives`."""
        ordered: T = order_collectives(tree, before, mesh=self._mesh)
        return ordered

    def read_out[T](
        self, function: Callable[[Params, Hidden, Any], T], params: Params, hidden: Hidden, batch: Any
    ) -> T:
        """Return what a function computes from the parameters of the LM head, the hidden states and a batch.

        All that an objective computes from hidden states belongs into one such function.
        """

        def run_trained(params: Params, hidden: Hidden, batch: Any) -> T:
            return function(self._stop_frozen(params), hidden, batch)

        run: Callable[[Params, Hidden, Any], T] = order_last_part(run_trained, self._mesh)
        return run(self.head_params(params), hidden, batch)

    def logits(self, params: Params, x_RLD: jax.Array) -> jax.Array:
        """Return the logits [R, L, V] in float32 of the hidden states of one microbatch."""
        return self._model.logits(params, x_RLD)

    def cross_entropies(self, params: Params, hidden: Hidden, targets_MRL: jax.Array) -> jax.Array:
        """Return the cross-entropy of each target [M, R, L] in float32."""
        targets_MRL = self._to_mesh_order(targets_MRL)
        num_chunks = self._count_chunks(targets_MRL)
        if num_chunks > 1:
            head, x, matrix = self.read_hidden(params, hidden)
            losses_MRL = token_losses(head, num_chunks, x, matrix, self._by_tick(targets_MRL)).reshape(
                targets_MRL.shape
            )
        else:
            losses_MRL = self._token_losses(params, hidden, targets_MRL).cross_entropy
        return to_sequence_order(losses_MRL, self.network.exchange, self._context)

    def _to_mesh_order(self, array_MRL: jax.Array) -> jax.Array:
        return to_mesh_order(array_MRL, self.network.exchange, self._context)

    def _token_losses(
        self,
        params: Params,
        hidden: Hidden,
        targets_MRL: jax.Array,
        z_loss: float | None = None,
        *,
        counts_hits: bool = False,
        teacher: TeacherHidden | TeacherStored | None = None,
    ) -> TokenLosses:
        """Return the losses [M, R, L] of targets in the order of the mesh, from whole logits."""

        def run(x_RLD: jax.Array, targets_RL: jax.Array, taught_RL: Any) -> TokenLosses:
            taught = teacher.attach(taught_RL) if teacher else None
            logits_RLV = self.logits(params, x_RLD)
            return losses_of_logits(logits_RLV, targets_RL, z_loss, counts_hits=counts_hits, teacher=taught)

        arrays = hidden.x, targets_MRL, teacher.per_token if teacher else None
        if self._num_stages == 1:
            losses: TokenLosses = run(*jax.tree.map(lambda leaf: leaf[0], arrays))
        else:
            ticks = jax.tree.map(self._by_tick, arrays)
            losses = jax.lax.map(lambda tick: jax.vmap(run)(*tick), ticks)
        shaped: TokenLosses = jax.tree.map(lambda leaf: leaf.reshape(targets_MRL.shape), losses)
        return shaped

    def sum_losses(
        self,
        params: Params,
        hidden: Hidden,
        targets_MRL: jax.Array,
        weights_MRL: jax.Array,
        z_loss: float | None = None,
        *,
        counts_hits: bool = False,
        teacher: TeacherHidden | TeacherStored | None = None,
    ) -> TokenLosses:
        """Return the weighted sums of the losses, float32 scalars; `z_loss` is the weight of the squared log-partition.

        With `counts_hits`, hits are summed too, and with a teacher the divergence from it. The loss of a token of
        weight 0 may be infinite. With chunks of logits this needs fewer FLOPs than the sum of `cross_entropies`.
        Differentiate the total alone.
        """
        targets_MRL, weights_MRL = self._to_mesh_order(targets_MRL), self._to_mesh_order(weights_MRL)
        num_chunks = self._count_chunks(targets_MRL)
        if num_chunks > 1:
            head, x, matrix = self.read_hidden(params, hidden)
            targets, weights = self._by_tick(targets_MRL), self._by_tick(weights_MRL)
            head = replace(head, z_loss=z_loss, counts_hits=counts_hits)
            states: TeacherStates | StoredStates | None = None
            if isinstance(teacher, TeacherStored):
                states = StoredStates(jax.tree.map(self._by_tick, teacher.per_token), teacher.soft)
            elif teacher:
                taught_head, taught_x, taught_matrix = teacher.model.read_hidden(teacher.params, teacher.hidden)
                head, states = replace(head, teacher=taught_head), TeacherStates(taught_x, taught_matrix, teacher.soft)
            return sum_losses(head, num_chunks, x, matrix, targets, weights, states)
        losses = self._token_losses(params, hidden, targets_MRL, z_loss, counts_hits=counts_hits, teacher=teacher)
        return losses.sum(weights_MRL)

    def sum_predictions(self, params: Params, hidden: Hidden, batch: Any) -> tuple[jax.Array, RoutingStats | None]:
        """Return the sum of the cross-entropies of all further tokens, and the routing statistics of the modules.

        Each depth has its own module and norm. A token has no weight if the sequence or its document ends first.
        """
        self.has_predicted = True
        routing = jax.tree.map(jnp.zeros_like, hidden.routing)
        seeds = None if batch.seeds is None else jax.vmap(lambda seeds_R: mix_name(seeds_R, PREDICTION))(batch.seeds)
        positions, segments = self.order_tokens(batch.positions, batch.segment_ids)
        lengths = self.find_loss_lengths(batch.loss_weights)
        stream = HiddenStates(hidden.x, routing, positions, segments, seeds, loss_lengths=lengths)
        assert hidden.embedded is not None  # noqa: S101  # `run` keeps it for a model with modules
        later = Shifted(hidden.embedded, batch.targets, batch.loss_weights, batch.segment_ids)

        def predict(carried: tuple[HiddenStates, Shifted], module: Params) -> tuple[Any, jax.Array]:
            def run(stream: HiddenStates, later: Shifted, segments_RL: jax.Array | None) -> tuple[Any, ...]:
                later, weights_RL = shift(later, segments_RL, self.network.exchange, self._context)
                return self._model.run_prediction(module, stream, later.embedded), later, weights_RL

            stream, later, weights_MRL = self._map_microbatches(run, *carried, batch.segment_ids)
            own = params | {"norm": module["norm"]}
            loss = self.sum_losses(own, Hidden(stream.x, None), later.targets, weights_MRL)
            return (stream, later), loss.total

        (stream, _), losses = jax.lax.scan(predict, (stream, later), params[PREDICTION])
        return jnp.sum(losses), stream.routing

    def _map_microbatches(self, function: Callable[..., Any], *trees: Any) -> Any:
        """Return what a function computes for each microbatch of trees of arrays [M, ...].

        The stages share the microbatches in the same way as the LM head.
        """
        if self._num_stages == 1:
            result = function(*jax.tree.map(lambda leaf: leaf[0], trees))
            return jax.tree.map(lambda leaf: leaf[None], result)
        run_all = jax.vmap(function, spmd_axis_name="stage")
        ticks = jax.lax.map(lambda tick: run_all(*tick), jax.tree.map(self._by_tick, trees))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), ticks)

    def _count_chunks(self, targets_MRL: jax.Array) -> int:
        """Return the number of chunks in which a device computes its logits; 1: those of a microbatch are whole."""
        M, R, L = targets_MRL.shape
        mesh = jax.sharding.get_abstract_mesh()
        ways = count_shards({axis: 1 if axis in mesh.manual_axes else mesh.shape[axis] for axis in mesh.axis_names})
        rows, length, columns = (
            size // shards_of_dim(axis, size, ways)
            for axis, size in (("batch", R), ("length", L), (self._vocab_axis, self.network.vocab_size))
        )
        num_chunks = count_loss_chunks(self._model.memory, rows * length, columns)
        return num_chunks if num_chunks == 1 else num_chunks * M // self._num_stages

    def read_hidden(self, params: Params, hidden: Hidden) -> tuple[LmHead, jax.Array, jax.Array]:
        """Return the LM head, the normalized hidden states [T, S, R, L, D], and the stored matrix.

        With a sharded residual stream each device normalizes its own tokens, and then gathers those of the others.
        """
        if not any(block.shards_stream for block in self.network.blocks):
            head, x_TSRLD, matrix = self._model.read_out(params, self._by_tick(hidden.x))
        else:
            head, x_TSRLD, matrix = self._model.read_out(params, self._by_tick(hidden.x, "stream_length"))
            x_TSRLD = reshard(x_TSRLD, HIDDEN, STREAM)
        return replace(head, vocab_axis=self._vocab_axis), x_TSRLD, matrix

    def _by_tick(self, array: jax.Array, length: str = "length") -> jax.Array:
        """Return an array [M, R, L, ...] as [T, S, R, L, ...]: the stages share the LM head.

        Each computes every S-th microbatch. `length` is the logical axis of the tokens of hidden states.
        """
        array_TSRL = array.reshape(-1, self._num_stages, *array.shape[1:])
        token_axes = ((), (None,), (length, None))[min(array.ndim - 2, 2)]
        return constrain(array_TSRL, None, "stages", "batch", *token_axes)

    def _embed(
        self,
        params: Params,
        tokens_MRL: jax.Array,
        positions_MRL: jax.Array | None,
        segments_MRL: jax.Array | None,
        seeds_MR: jax.Array | None,
        loss_lengths_MR: jax.Array | None,
    ) -> HiddenStates:
        """Return the hidden states before the first layer."""
        params = self._stop_frozen(params)
        batch = tokens_MRL, positions_MRL, segments_MRL, seeds_MR, loss_lengths_MR
        if self._num_stages == 1:
            (rows,) = zip(*(array if array is not None else [None] for array in batch), strict=True)
            hidden: HiddenStates = jax.tree.map(lambda leaf: leaf[None], self._model.embed(params, *rows))
            return hidden
        streams: HiddenStates = jax.lax.map(lambda rows: self._model.embed(params, *rows), batch)
        return streams

    def _stop_frozen(self, params: Params) -> Params:
        """Return parameters of which the frozen ones have no gradient.

        `order_first_part` and `order_last_part` otherwise compute the gradients of all their arguments.
        """
        trained, frozen = self._model.param_split.split(params)
        return self._model.param_split.merge(trained, jax.tree.map(jax.lax.stop_gradient, frozen))

    def _table_params(self, params: Params) -> Params:
        """Return the parameters before the first layer."""
        return {tensor.name: params[tensor.name] for tensor in self.network.embedding.tensors}

    def head_params(self, params: Params) -> Params:
        """Return the parameters after the last layer, with a tied embedding, and those of further predictions."""
        head = self.network.head
        used = {"norm", "embedding"} if head.is_tied else {"norm", *(tensor.name for tensor in head.tensors)}
        used.add(PREDICTION)
        return {name: param for name, param in params.items() if name in used}
