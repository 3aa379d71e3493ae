"""What objectives see of a model whose hidden states have left the last stage, one microbatch at a time.

All stages compute the logits of a microbatch at once: each has its own columns of the vocabulary, and sums the gradient
of these columns alone.
"""

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.parallel.sharding import Axes, constrain, shards_on_mesh

VOCAB = "vocab_of_stages"


class LastStage(ShardedModel):
    """A model that has already run: `run` returns the given hidden states of one microbatch, once."""

    def __init__(self, model: SplitModel, mesh: Mesh, hidden: Hidden | None) -> None:
        super().__init__(model, mesh)
        self._num_stages = 1
        if shards_on_mesh(VOCAB, model.network.vocab_size) > 1:
            self._vocab_axis = VOCAB
        self._hidden = hidden

    def run(  # with the signature of a model, so that the type checker sees a call that it cannot take
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
        """Return the hidden states of the microbatch. The modules of further tokens embed it again.

        Raises:
            ValueError: the objective runs the model several times.
        """
        del tapped, weights_MRL  # the stages have already run with them
        if self._hidden is None:
            raise ValueError("an objective must run the model once with `schedule: oneForwardOneBackward`")
        hidden, self._hidden = self._hidden, None
        if self.network.prediction is None:
            return hidden
        table = self.after(self._table_params(params), hidden.x)
        return hidden._replace(embedded=self.embed(table, tokens_MRL, positions_MRL, segments_MRL, seeds_MR).x)

    def read_like(self, model: SplitModel) -> ShardedModel:
        """Return another model of the same vocabulary that reads out one microbatch on all stages. It cannot run."""
        return LastStage(model, self._mesh, None)

    def logits(self, params: Params, x_RLD: jax.Array) -> jax.Array:
        """Return the logits [R, L, V] of a stage's columns, in float32, of the hidden states of the microbatch."""
        # XLA would split the width of what comes before, such as modules of further tokens, over the stages.
        return super().logits(params, constrain(x_RLD, "batch", "length", None))

    def head_params(self, params: Params) -> Params:
        """Return the parameters after the last layer, with the matrix of the LM head split over the stages."""
        used, matrix = super().head_params(params), self.network.head_matrix
        axes = split_vocabulary(matrix.axes, matrix.shape)
        return used | {matrix.name: constrain(used[matrix.name], *axes)}


def split_vocabulary(axes: Sequence[str | None], shape: Sequence[int]) -> Axes:
    """Return the logical axes of a tensor whose vocabulary is split over the stages, if these divide it."""
    return tuple(
        VOCAB if axis == "vocab" and shards_on_mesh(VOCAB, size) > 1 else axis
        for axis, size in zip(axes, shape, strict=True)
    )
