"""What the rows of a batch add up to: losses, their gradients, and what routers said.

Sums, weights and gradients accumulate in float32, microstep by microstep. The axis `data` is manual, so that they are
reduced over it, and with it over DCN, once a batch and not once a microstep; the axes inside a shard of the batch are
the partitioner's.

Shapes: M microbatches, R rows, L length, S stages, V vocabulary, D model width.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from trainingjob_api.experts import Experts
from trainingjob_api.sharding import Table
from trainingjob_trainer.mlp import Routing
from trainingjob_trainer.model import Params, SplitModel, Stream
from trainingjob_trainer.sharding import constrain
from trainingjob_trainer.signature import Batch


class Sums(NamedTuple):
    """What rows add up to; divided by `weight` it is a mean over predictions."""

    loss: jax.Array
    """Cross-entropies."""
    weight: jax.Array
    """Predictions that count."""
    routing: Routing | None
    """Of each prediction's row, over all layers. None: there are no experts."""


class Losses:
    """The losses of a model over one mesh. `rules` say how its gradients are split, `experts` how its routers learn."""

    def __init__(self, model: SplitModel, experts: Experts | None, rules: Table, mesh: Mesh) -> None:
        self._experts = experts
        self._model = model
        self._mesh = mesh
        self._rules = rules
        self._is_one_shard = mesh.shape["data"] == 1
        self._num_stages = mesh.shape["stage"]

    def sum_up(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the sum of the losses of a batch and its weight in predictions."""

        def sum_locally(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            def microstep(sums: tuple[jax.Array, jax.Array], rows: Batch) -> tuple[Any, None]:
                loss, weight, _ = self._sum_losses(params, rows)
                return jax.tree.map(jnp.add, sums, (loss, weight)), None

            zero = self._vary(jnp.zeros(()))
            sums, _ = jax.lax.scan(microstep, (zero, zero), batch)
            reduced: tuple[jax.Array, jax.Array] = self._reduce(sums)
            return reduced

        sums: tuple[jax.Array, jax.Array] = self._over_data(sum_locally)(params, batch)
        return sums

    def sum_gradients(self, params: Params, batch: Batch) -> tuple[Sums, Params]:
        """Return what the rows add up to, and the gradient of the trained loss' sum in float32."""
        axes, rules = self._model.axes, self._rules
        experts = self._experts

        def sum_locally(params: Params, batch: Batch) -> Any:
            params = self._vary(params)  # else the transpose would reduce over `data` in every microstep

            def microstep(sums: Any, rows: Batch) -> tuple[Any, None]:
                def total(params: Params) -> tuple[jax.Array, Sums]:
                    found = self._sum_losses(params, rows)
                    if experts and found.routing:
                        return found.loss + experts.load_balance_weight * found.routing.load_balance, found
                    return found.loss, found

                (_, found), grads = jax.value_and_grad(total, has_aux=True)(params)
                grads = jax.tree.map(lambda grad, names: constrain(grad, *names, rules=rules), as_float32(grads), axes)
                return jax.tree.map(jnp.add, sums, (found, grads)), None

            zero = self._vary(jnp.zeros(()))
            nothing = Sums(zero, zero, Routing(zero, zero) if experts else None)
            zeros = jax.tree.map(lambda param: self._vary(jnp.zeros(param.shape, jnp.float32)), params)
            sums, _ = jax.lax.scan(microstep, (nothing, zeros), batch)
            return self._reduce(sums)

        result: tuple[Sums, Params] = self._over_data(sum_locally)(params, batch)
        return result

    def _sum_losses(self, params: Params, rows: Batch) -> Sums:
        """Return what microbatches [M, R, L + 1] add up to."""
        if self._num_stages == 1:
            (tokens,), (weights,) = rows
            stream = self._model.run_layers(params, self._model.embed(params, tokens[:, :-1]))
            loss, weight = sum_losses(self._model.head(params, stream.x), tokens, weights)
            return Sums(loss, weight, sum_routing(stream, weights))
        streams = jax.lax.map(lambda tokens: self._model.embed(params, tokens[:, :-1]), rows.tokens)
        streams = self._model.run_stages(params, streams, self._num_stages)
        # The stages share the read-out: each has every S-th microbatch.
        in_turns = jax.tree.map(lambda leaf: leaf.reshape(-1, self._num_stages, *leaf.shape[1:]), (streams.x, rows))
        y_TSRLD, (tokens, weights) = in_turns
        turns = (
            constrain(y_TSRLD, None, "stages", "batch", "length", None),
            Batch(constrain(tokens, None, "stages", "batch", None), constrain(weights, None, "stages", "batch")),
        )

        def read_out(sums: Any, turn: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            def one(y_RLD: jax.Array, rows: Batch) -> tuple[jax.Array, jax.Array]:
                return sum_losses(self._model.head(params, y_RLD), rows.tokens, rows.weights)

            found = jax.vmap(one)(*turn)
            return jax.tree.map(lambda total, new: total + jnp.sum(new), sums, found), None

        zero = self._vary(jnp.zeros(()))
        (loss, weight), _ = jax.lax.scan(read_out, (zero, zero), turns)
        return Sums(loss, weight, sum_routing(streams, rows.weights))

    def _over_data(self, function: Any) -> Any:
        """Return a function of (params, batch) with the axis `data` manual, and with the mesh for `constrain`."""
        if self._is_one_shard:  # XLA cannot reduce over a manual axis of one
            return self._in_mesh(function)
        rows = PartitionSpec(None, None, "data")
        return jax.shard_map(
            function,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), rows),
            out_specs=PartitionSpec(),
            axis_names={"data"},
        )

    def _in_mesh(self, function: Any) -> Any:
        """Return a function that is traced with the mesh around it, as `shard_map` would have it."""

        def traced(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
                return function(*arguments)

        return traced

    def _vary(self, tree: Any) -> Any:
        """Declare values as different on each shard of `data`."""
        return tree if self._is_one_shard else jax.lax.pcast(tree, "data", to="varying")

    def _reduce(self, tree: Any) -> Any:
        """Return the sum over all shards of `data`."""
        return tree if self._is_one_shard else jax.lax.psum(tree, "data")


def sum_losses(logits_RLV: jax.Array, tokens: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the cross-entropies of rows [R, L + 1] and the number of predictions that count."""
    # Picked by comparison: XLA cannot partition a gather from a split vocabulary inside a partly manual shard_map.
    is_target_RLV = tokens[:, 1:, None] == jnp.arange(logits_RLV.shape[-1])[None, None, :]
    target_logits_RL = jnp.sum(jnp.where(is_target_RLV, logits_RLV, 0.0), axis=-1)
    losses_RL = jax.nn.logsumexp(logits_RLV, axis=-1) - target_logits_RL
    # A padding row may hold anything, also what makes a loss infinite: it must not reach the sum as 0 x infinity.
    counted_R1 = weights[:, None]
    total = jnp.sum(jnp.where(counted_R1 > 0, losses_RL * counted_R1, 0.0))
    return total, jnp.sum(weights) * losses_RL.shape[1]


def sum_routing(stream: Stream, weights: jax.Array) -> Routing | None:  # None: there are no experts
    """Return what routers said of weighted rows, summed over their predictions."""
    if stream.routing is None:
        return None
    length = stream.x.shape[-2]
    return Routing(*(length * jnp.sum(jnp.where(weights > 0, said * weights, 0.0)) for said in stream.routing))


def as_float32(tree: Any) -> Any:
    """Return a tree of arrays in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
