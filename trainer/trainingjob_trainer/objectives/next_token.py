"""The next-token objective: the cross-entropy of the targets. With weight 0 for a prompt, it is fine-tuning."""

from functools import partial

import jax.numpy as jnp

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.objectives.objective import Terms, add_load_balance
from trainingjob_trainer.state import Batch


def next_token(model: ShardedModel, params: Params, batch: Batch) -> Terms:
    """Return the weighted sum of cross-entropies, with the load-balancing loss of the experts."""
    hidden = model.run(params, batch.tokens, batch.positions, batch.segment_ids, batch.seeds)
    return model.read_out(partial(_sum_losses, model), params, hidden, batch)


def _sum_losses(model: ShardedModel, params: Params, hidden: Hidden, batch: Batch) -> Terms:
    loss = model.sum_losses(params, hidden, batch.targets, batch.loss_weights)
    return add_load_balance(model, hidden, batch, Terms(loss, loss, jnp.sum(batch.loss_weights), {}))
