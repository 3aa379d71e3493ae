"""Direct preference optimization (Rafailov et al., arXiv 2305.18290): the chosen answer of a pair against the other.

The loss of a pair is -log sigmoid(margin), where the margin is the difference of the rewards of both answers. The
reward of an answer is beta times the difference of its log-probabilities in the model and in the reference. With label
smoothing e, the loss is (1 - e) times that, and e times the loss of the pair the other way round (Mitchell, "A note on
DPO with noisy preferences", 2023). Log-probabilities are sums over the tokens of an answer.

Sequences 2 p and 2 p + 1 of a microbatch are the chosen and the rejected answer of pair p.

Shapes: M microbatches, R sequences, P = R / 2 pairs.
"""

from functools import partial

import jax
import jax.numpy as jnp

from trainingjob_api.spec.objective import Dpo
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.objectives.objective import Terms, add_load_balance
from trainingjob_trainer.state import Batch


def dpo(options: Dpo, model: ShardedModel, params: Params, batch: Batch) -> Terms:
    """Return the sums of the losses of pairs, and of their metrics. The weight is the number of pairs."""
    hidden = model.run_batch(params, batch)
    return model.read_out(partial(_sum_pairs, model, options), params, hidden, batch)


def answer_log_probs(model: ShardedModel, params: Params, batch: Batch) -> jax.Array:
    """Return the log-probability of each sequence's answer, float32 [M, R]. Nothing is dropped."""
    hidden = model.run(params, batch.tokens, batch.positions, batch.segment_ids)
    return model.read_out(partial(_sum_log_probs, model), params, hidden, batch)


def _sum_log_probs(model: ShardedModel, params: Params, hidden: Hidden, batch: Batch) -> jax.Array:
    losses_MRL = model.cross_entropies(params, hidden, batch.targets)
    weights_MRL = batch.loss_weights
    # The loss of a token of weight 0 may be infinite.
    return -jnp.sum(jnp.where(weights_MRL != 0, losses_MRL * weights_MRL, 0.0), axis=-1)


def _sum_pairs(model: ShardedModel, options: Dpo, params: Params, hidden: Hidden, batch: Batch) -> Terms:
    assert batch.reference_log_probs is not None  # noqa: S101  # `StepPrograms` adds them
    weights_MP = (jnp.sum(batch.loss_weights, axis=-1) > 0).astype(jnp.float32)[:, ::2]
    log_ratios_MR = _sum_log_probs(model, params, hidden, batch) - batch.reference_log_probs
    rewards_MP2 = options.beta * log_ratios_MR.reshape(*weights_MP.shape, 2)
    chosen_MP, rejected_MP = rewards_MP2[..., 0], rewards_MP2[..., 1]
    margins_MP = chosen_MP - rejected_MP
    smoothing = options.label_smoothing
    losses_MP = -(1 - smoothing) * jax.nn.log_sigmoid(margins_MP) - smoothing * jax.nn.log_sigmoid(-margins_MP)

    def add(values_MP: jax.Array) -> jax.Array:
        return jnp.sum(values_MP * weights_MP)

    total = add(losses_MP)
    metrics = {
        "chosen_reward": add(chosen_MP),
        "rejected_reward": add(rejected_MP),
        "reward_margin": add(margins_MP),
        "reward_accuracy": add((margins_MP > 0).astype(jnp.float32)),
    }
    # The statistics of a sequence count as half a pair.
    halves = jnp.repeat(weights_MP / 2, 2, axis=-1)[..., None]
    terms = Terms(total, total, jnp.sum(weights_MP), metrics)
    return add_load_balance(model, hidden, batch._replace(loss_weights=halves), terms)
