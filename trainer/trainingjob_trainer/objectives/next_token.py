"""The next-token objective: the cross-entropy of the targets. With weight 0 for a prompt, it is fine-tuning."""

from functools import partial

import jax
import jax.numpy as jnp

from trainingjob_api.network.multi_token_prediction import PREDICTION, MultiTokenPrediction
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.models.token_losses import TokenLosses
from trainingjob_trainer.objectives.objective import Terms, add_load_balance
from trainingjob_trainer.state import Batch


def next_token(z_loss: float | None, model: ShardedModel, params: Params, batch: Batch) -> Terms:
    """Return the weighted sum of cross-entropies, with the auxiliary losses: of the logits and of the experts."""
    hidden = model.run_batch(params, batch)
    return model.read_out(partial(_sum_losses, model, z_loss), params, hidden, batch)


def _sum_losses(model: ShardedModel, z_loss: float | None, params: Params, hidden: Hidden, batch: Batch) -> Terms:
    if model.network.prediction is None:
        losses = model.sum_losses(params, hidden, batch.targets, batch.loss_weights, z_loss)
        return add_load_balance(model, hidden, batch, _as_terms(losses, batch))
    return _add_predictions(model, model.network.prediction.options, z_loss, params, hidden, batch)


def _as_terms(losses: TokenLosses, batch: Batch) -> Terms:
    """Return the terms of the next tokens alone."""
    metrics = {} if losses.penalty is None else {"z_loss": losses.penalty}
    return Terms(losses.total, losses.cross_entropy, jnp.sum(batch.loss_weights), metrics)


def _add_predictions(
    model: ShardedModel,
    options: MultiTokenPrediction,
    z_loss: float | None,
    params: Params,
    hidden: Hidden,
    batch: Batch,
) -> Terms:
    """Return the terms with the weighted mean of the losses of further tokens, which is not reported as the loss.

    All losses are divided by the same weight, as in DeepSeek-V3.
    """

    def run_main(params: Params, hidden: Hidden, batch: Batch) -> tuple[TokenLosses, Hidden]:
        return model.sum_losses(params, hidden, batch.targets, batch.loss_weights, z_loss), hidden

    shared = {name: param for name, param in params.items() if name != PREDICTION}
    losses, hidden = model.run_before(run_main, shared, hidden, batch)
    further, routing = model.run_after(model.sum_predictions, params, model.after(hidden, losses), batch)
    hidden = hidden._replace(routing=jax.tree.map(jnp.add, hidden.routing, routing))
    terms = _as_terms(losses, batch)
    terms = terms._replace(total=terms.total + options.loss_weight / options.depth * further)
    return add_load_balance(model, hidden, batch, terms)
