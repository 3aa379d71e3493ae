"""The next-token objective: the cross-entropy of the targets. With weight 0 for a prompt, it is fine-tuning."""

from functools import partial

import jax
import jax.numpy as jnp

from trainingjob_api.network.multi_token_prediction import PREDICTION, MultiTokenPrediction
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.objectives.objective import Terms, add_load_balance
from trainingjob_trainer.state import Batch


def next_token(model: ShardedModel, params: Params, batch: Batch) -> Terms:
    """Return the weighted sum of cross-entropies, with the load-balancing loss of the experts."""
    hidden = model.run(params, batch.tokens, batch.positions, batch.segment_ids, batch.seeds)
    return model.read_out(partial(_sum_losses, model), params, hidden, batch)


def _sum_losses(model: ShardedModel, params: Params, hidden: Hidden, batch: Batch) -> Terms:
    if model.network.prediction is None:
        loss = model.sum_losses(params, hidden, batch.targets, batch.loss_weights)
        return add_load_balance(model, hidden, batch, Terms(loss, loss, jnp.sum(batch.loss_weights), {}))
    return _add_predictions(model, model.network.prediction.options, params, hidden, batch)


def _add_predictions(
    model: ShardedModel, options: MultiTokenPrediction, params: Params, hidden: Hidden, batch: Batch
) -> Terms:
    """Return the terms with the weighted mean of the losses of further tokens, which is not reported as the loss.

    All losses are divided by the same weight, as in DeepSeek-V3.
    """

    def run_main(params: Params, hidden: Hidden, batch: Batch) -> tuple[jax.Array, Hidden]:
        return model.sum_losses(params, hidden, batch.targets, batch.loss_weights), hidden

    shared = {name: param for name, param in params.items() if name != PREDICTION}
    loss, hidden = model.run_before(run_main, shared, hidden, batch)
    further, routing = model.run_after(model.sum_predictions, params, model.after(hidden, loss), batch)
    hidden = hidden._replace(routing=jax.tree.map(jnp.add, hidden.routing, routing))
    total = loss + options.loss_weight / options.depth * further
    return add_load_balance(model, hidden, batch, Terms(total, loss, jnp.sum(batch.loss_weights), {}))
