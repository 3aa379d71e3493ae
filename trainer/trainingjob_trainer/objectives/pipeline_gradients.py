"""The sums of an objective and their gradients on a pipeline whose stages alternate between both passes.

A microbatch is read out as soon as it leaves the last stage, so that its backward pass can start. The objective is
therefore called with one microbatch at a time.
"""

from collections.abc import Sequence
from functools import partial

import jax
from jax.sharding import Mesh

from trainingjob_api.network.multi_token_prediction import PREDICTION
from trainingjob_api.sharding import Table
from trainingjob_trainer.models.alternating_pipeline import PartParams, PipelineParts, differentiate_pipeline
from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.last_stage import LastStage, split_vocabulary
from trainingjob_trainer.models.layers import HiddenStates, add_taps
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.models.trainable import merge_trees
from trainingjob_trainer.objectives.objective import Objective, Terms
from trainingjob_trainer.parallel.collective_order import order_collectives
from trainingjob_trainer.parallel.sharding import Axes, constrain
from trainingjob_trainer.state import Batch


class PipelineGradients:
    """Sums and gradients over the microbatches of one accumulation step. `rules` shard the gradients.

    `zeros` are sums of no microbatches, `tapped` the layers whose outputs the objective reads.
    """

    def __init__(
        self,
        objective: Objective,
        model: SplitModel,
        rules: Table,
        mesh: Mesh,
        zeros: Terms,
        tapped: Sequence[int] = (),
    ) -> None:
        self._objective = objective
        self._model = model
        self._sharded = ShardedModel(model, mesh)
        self._rules = rules
        self._mesh = mesh
        self._zeros = zeros
        self._tapped = tapped
        self._num_stages = mesh.shape["stage"]
        (self._group,) = model.network.groups
        self._axes = self._take_parts(model.param_split.split(model.axes).trained)

    def compute(self, trained: Params, frozen: Params, batch: Batch) -> tuple[Terms, Params]:
        """Return the sums of microbatches [M, R, L], and the gradients of their total by the trained parameters.

        `trained` is in float32.
        """
        params = self._take_parts(trained)
        params = params._replace(layers=self._split_layers(params.layers))
        parts = PipelineParts(
            embed=lambda part, rows: add_taps(self._model.embed(merge_trees(part, frozen), *rows[0]), self._tapped),
            run_stage=lambda stream, part, constants: self._model.run_stage(
                stream, merge_trees(part, constants), self._tapped
            ),
            frozen=self._split_layers(frozen.get(self._group.name, {})),
            read_out=lambda part, stream, rows: self._read_out(merge_trees(part, frozen), stream, rows[1]),
            shard=self._shard,
            order=partial(order_collectives, mesh=self._mesh),
        )
        schedule = self._model.pipeline.plan(len(batch.tokens), self._num_stages)
        tokens = self._sharded.order_tokens(batch.tokens, batch.positions, batch.segment_ids)
        inputs = (*tokens, batch.seeds, self._sharded.find_loss_lengths(batch.loss_weights))
        terms, grads = differentiate_pipeline(parts, params, (inputs, batch), self._zeros, schedule)
        return terms, self._join_parts(grads)

    def _read_out(self, params: Params, stream: HiddenStates, rows: Batch) -> tuple[jax.Array, Terms]:
        """Return the total and the sums of a microbatch whose hidden states have left the last stage."""
        if rows.taught_layers is not None:  # otherwise XLA gathers those of all microbatches in each tick
            rows = rows._replace(taught_layers=constrain(rows.taught_layers, "batch", None, "length", None))
        stream, batch = jax.tree.map(lambda leaf: leaf[None], (stream, rows))
        hidden = Hidden(stream.x, stream.routing, tapped=stream.taps.outputs if stream.taps else None)
        terms = self._objective(LastStage(self._model, self._mesh, hidden), params, batch)
        return terms.total, terms

    def _shard(self, grads: PartParams) -> PartParams:
        def shard(grad: jax.Array, axes: Axes) -> jax.Array:
            return constrain(grad, *axes, rules=self._rules)

        return PartParams(
            jax.tree.map(shard, grads.embedding, self._axes.embedding),
            jax.tree.map(lambda grad, axes: shard(grad, ("stages", None, *axes[1:])), grads.layers, self._axes.layers),
            # As `LastStage` splits the matrix, by the built-in rules.
            jax.tree.map(
                lambda grad, axes: constrain(grad, *split_vocabulary(axes, grad.shape)), grads.head, self._axes.head
            ),
        )

    def _take_parts(self, tree: Params) -> PartParams:
        """Return a tree of trained parameters by parts. Modules of further tokens are part of the head.

        The tables are part of the embedding, and of the head too if it reads them.
        """
        network = self._model.network
        tables = {tensor.name for tensor in network.embedding.tensors}
        head = {"norm", PREDICTION, network.head_matrix.name} | (tables if network.prediction else set())
        return PartParams(
            {name: tree[name] for name in tree if name in tables},
            tree.get(self._group.name, {}),
            {name: tree[name] for name in tree if name in head},
        )

    def _join_parts(self, grads: PartParams) -> Params:
        """Return the tree of gradients; the parts add those of a tied table."""
        layers = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), grads.layers)
        joined: Params = grads.embedding | grads.head | ({self._group.name: layers} if layers else {})
        shared = {name: grads.embedding[name] + grads.head[name] for name in grads.embedding.keys() & grads.head.keys()}
        return joined | shared

    def _split_layers(self, layers: Params) -> Params:
        """Return stacked layers as [S, layers of a stage, ...]."""
        split: Params = jax.tree.map(lambda leaf: leaf.reshape(self._num_stages, -1, *leaf.shape[1:]), layers)
        return split
