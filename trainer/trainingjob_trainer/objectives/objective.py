"""What an objective is: a function from the model and a batch to unnormalized sums.

The caller adds the sums over microbatches, gradient-accumulation steps and devices, and divides them once by the global
weight. The result then depends on none of these splits.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainingjob_api.network.network import Network
from trainingjob_api.spec.objective import DISTILL, DPO
from trainingjob_api.spec.objective import Objective as ObjectiveSection
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.state import Batch


class Terms(NamedTuple):
    """Unnormalized sums over the predictions of a batch, float32 scalars; divide by `weight` for means."""

    total: jax.Array
    """The sum to minimize: the loss, with auxiliary losses."""
    loss: jax.Array
    """The sum that is reported as the loss."""
    weight: jax.Array
    """The sum of the loss weights."""
    metrics: dict[str, jax.Array]
    """Sums of further metrics, by name."""


type Objective = Callable[[ShardedModel, Params, Batch], Terms]
"""Returns the sums of microbatches [M, R, L]. It may call the model several times."""


REWARD_ACCURACY = "reward_accuracy"
"""Share of the pairs whose chosen answer has the greater reward."""
REWARD_METRICS = ("chosen_reward", "rejected_reward", "reward_margin", REWARD_ACCURACY)
CROSS_ENTROPY = "cross_entropy"
TEACHER_DIVERGENCE = "teacher_divergence"
"""Kullback-Leibler divergence of the student from its teacher, at the temperature of the loss."""


FEATURE_LOSS = "feature_loss"
"""Distance of the student's hidden states from those of its teacher."""


def metric_names(objective: ObjectiveSection, network: Network) -> tuple[str, ...]:
    """Return the names of the metrics of an objective, which are known without tracing it."""
    of_logits = () if objective.z_loss is None else ("z_loss",)
    of_type = {DPO: REWARD_METRICS, DISTILL: (CROSS_ENTROPY, TEACHER_DIVERGENCE)}.get(objective.type, ())
    if objective.features:
        of_type = (*of_type, FEATURE_LOSS)
    return (*of_logits, *of_type, *(("load_balance", "dropped") if network.num_routed_layers else ()))


def add_load_balance(model: ShardedModel, hidden: Hidden, batch: Batch, terms: Terms) -> Terms:
    """Return the terms with the routing statistics, and with the weighted load-balancing loss. No experts: unchanged.

    A sequence's statistics count with the sum of its loss weights.
    """
    if hidden.routing is None:
        return terms
    weights_MR = jnp.sum(batch.loss_weights, axis=-1)

    def add_sequences(stats_MR: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(weights_MR > 0, stats_MR * weights_MR, 0.0))

    load_balance, dropped, load = jax.tree.map(add_sequences, hidden.routing)
    num_layers = model.network.num_routed_layers
    total = terms.total + model.network.load_balance_weight * load_balance
    return terms._replace(
        total=total if load is None else total + load,
        metrics=terms.metrics | {"load_balance": load_balance / num_layers, "dropped": dropped / num_layers},
    )
