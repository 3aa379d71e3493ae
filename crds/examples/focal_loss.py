"""Focal loss (Lin et al., arXiv 1708.02002) in place of the cross-entropy: tokens predicted well count less."""

from functools import partial

import jax.numpy as jnp

from trainingjob_trainer.entrypoint import (
    Batch,
    EntrypointContext,
    Hidden,
    Params,
    ShardedModel,
    StepParts,
    Terms,
    add_load_balance,
)


def customize(context: EntrypointContext) -> StepParts:
    """Return the parts of the training step that differ from the built-in ones."""
    gamma = float(context.config.get("gamma", "2"))  # 0: the cross-entropy

    def loss(model: ShardedModel, params: Params, batch: Batch) -> Terms:
        hidden = model.run(params, batch.tokens, batch.positions, batch.segment_ids, batch.seeds)
        return model.read_out(partial(sum_focal_losses, gamma, model), params, hidden, batch)

    return StepParts(loss=loss)


def sum_focal_losses(gamma: float, model: ShardedModel, params: Params, hidden: Hidden, batch: Batch) -> Terms:
    """Return sums over the tokens of microbatches. The trainer divides by the weight of the whole batch."""
    losses = model.cross_entropies(params, hidden, batch.targets)  # [microbatches, sequences, length]
    focal = (1.0 - jnp.exp(-losses)) ** gamma * losses if gamma else losses
    # The loss of a token of weight 0 may be infinite.
    total, loss = (
        jnp.sum(jnp.where(batch.loss_weights != 0, values * batch.loss_weights, 0.0)) for values in (focal, losses)
    )
    return add_load_balance(model, hidden, batch, Terms(total, loss, jnp.sum(batch.loss_weights), {}))
