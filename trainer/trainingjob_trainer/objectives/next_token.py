"""Loss sums of a batch, their gradients, and routing statistics.

Sums, weights and gradients are accumulated in float32 over the gradient-accumulation steps. The axis `data` is manual,
so that the reduction over it, which crosses DCN, happens once a batch and not once a step. The partitioner handles the
axes inside a data shard.

Shapes: M microbatches, R sequences, L length.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from trainingjob_api.sharding import Table
from trainingjob_api.spec.model import Experts
from trainingjob_trainer.models.decoder import HiddenStates, Params, SplitModel
from trainingjob_trainer.models.mlp import RoutingStats
from trainingjob_trainer.objectives.model_parts import LossSums, PipelineParts
from trainingjob_trainer.parallel.collective_order import order_collectives
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.state import Batch


class LossProgram:
    """Losses of a model over one mesh. `rules` shard the gradients; `experts` configures load balancing."""

    def __init__(self, model: SplitModel, experts: Experts | None, rules: Table, mesh: Mesh) -> None:
        self._experts = experts
        self._axes = model.axes
        self._parts = PipelineParts(model, mesh)
        self._mesh = mesh
        self._rules = rules
        self._is_one_shard = mesh.shape["data"] == 1

    def compute_loss(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the loss sum of a batch, and its weight in predicted tokens."""

        def sum_locally(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            def accumulation_step(sums: tuple[jax.Array, jax.Array], rows: Batch) -> tuple[Any, None]:
                stream = self._parts.run_layers(params, self._parts.embed(params, rows))
                then, rows = self._order_after((params, rows), stream.x)
                loss_sums = self._parts.sum_losses(then, stream, rows)
                return jax.tree.map(jnp.add, sums, (loss_sums.loss, loss_sums.weight)), None

            zero = jnp.zeros(())
            sums, _ = jax.lax.scan(accumulation_step, (zero, zero), batch)
            reduced: tuple[jax.Array, jax.Array] = self._reduce(sums)
            return reduced

        sums: tuple[jax.Array, jax.Array] = self._over_data(sum_locally)(params, batch)
        return sums

    def compute_gradients(self, params: Params, batch: Batch) -> tuple[LossSums, Params]:
        """Return the loss sums of a batch, and the gradient of the summed training loss in float32."""

        def sum_locally(params: Params, batch: Batch) -> Any:
            def microstep(sums: Any, rows: Batch) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, sums, self._differentiate(params, rows)), None

            zero = jnp.zeros(())
            nothing = LossSums(zero, zero, RoutingStats(zero, zero) if self._experts else None)
            zeros = jax.tree.map(lambda param: jnp.zeros(param.shape, jnp.float32), params)
            sums, _ = jax.lax.scan(microstep, (nothing, zeros), batch)
            return self._reduce(sums)

        result: tuple[LossSums, Params] = self._over_data(sum_locally)(params, batch)
        return result

    def _differentiate(self, params: Params, rows: Batch) -> tuple[LossSums, Params]:
        """Return the loss sums of microbatches [M, R, L + 1], and the gradient of their training loss in float32.

        The chain rule is written out, so that the collectives of one part of the model can wait for those of the part
        before.
        """
        parts = self._parts
        if self._mesh.shape["stage"] > 1:
            params = as_float32(params)  # pipeline ticks sum the gradient of a parameter in the parameter's own format
        embedding, layers, last = parts.split_params(params)
        stream, layers_vjp = jax.vjp(
            lambda layers, stream: parts.run_layers(params | layers, stream), layers, parts.embed(params, rows)
        )
        last_then, rows_then = self._order_after((last, rows), stream.x)

        def total(last: Params, stream: HiddenStates) -> tuple[jax.Array, LossSums]:
            found = parts.sum_losses(params | last, stream, rows_then)
            if self._experts and found.routing:
                return found.loss + self._experts.load_balance_weight * found.routing.load_balance, found
            return found.loss, found

        loss, losses_vjp, found = jax.vjp(total, last_then, stream, has_aux=True)
        last_grads, stream_grads = losses_vjp(jnp.ones_like(loss))
        last_grads = self._shard_gradients(last_grads)
        layer_grads, stream_grads = layers_vjp(self._order_after(stream_grads, found, last_grads))
        rows_then = self._order_after(rows, stream_grads.x)
        _, embedding_vjp = jax.vjp(lambda table: parts.embed(params | table, rows_then), embedding)
        embedding_grads = self._shard_gradients(*embedding_vjp(stream_grads))
        found, last_grads = self._order_after((found, last_grads), embedding_grads)
        if "embedding" in last_grads:
            embedding_grads = jax.tree.map(jnp.add, embedding_grads, {"embedding": last_grads["embedding"]})
        return found, last_grads | embedding_grads | self._shard_gradients(layer_grads)

    def _shard_gradients(self, grads: Params) -> Params:
        """Return gradients in float32, sharded like their parameters."""
        axes = {name: self._axes[name] for name in grads}
        split: Params = jax.tree.map(
            lambda grad, names: constrain(grad, *names, rules=self._rules), as_float32(grads), axes
        )
        return split

    def _order_after(self, tree: Any, *before: Any) -> Any:
        return order_collectives(tree, *before, mesh=self._mesh)

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
            # JAX cannot differentiate a nested `shard_map` while it checks which values differ along `data`. Without
            # the check, the transpose also leaves the gradients of a shard alone: `_reduce` sums them once.
            check_vma=False,
        )

    def _in_mesh(self, function: Any) -> Any:
        """Return a function that is traced in the context of the mesh, as `shard_map` does."""

        def traced(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
                return function(*arguments)

        return traced

    def _reduce(self, tree: Any) -> Any:
        """Return the sum over all shards of `data`."""
        return tree if self._is_one_shard else jax.lax.psum(tree, "data")


def as_float32(tree: Any) -> Any:
    """Return a tree of arrays in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
