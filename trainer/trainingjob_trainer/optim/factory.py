"""The optimizers, in float32, whatever the format of the parameters."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import DecayClass
from trainingjob_api.optim import find_rate_scale
from trainingjob_api.sharding import RULES, Table
from trainingjob_api.spec.optimizer import Adafactor, AdamW, Lion, Muon, Optimizer, Sgd
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.params import DTYPES
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.optim.adafactor import scale_by_factored_rms, scale_by_param_rms
from trainingjob_trainer.optim.clipping import clip_update_rms
from trainingjob_trainer.optim.muon import scale_by_adam, scale_by_muon_and_adam


def make_optimizer(
    optimizer: Optimizer,
    network: Network,
    precision: Precision,
    mesh: Mesh | None = None,
    rules: Table = RULES,
) -> optax.GradientTransformation:
    """Return the direction of an update and weight decay; the caller clips gradients, and applies the learning rate.

    `rules` shard the parameters over the mesh. None: they are on one device.

    Where the spec limits updates, or has factors of the learning rate, these are included.
    """
    decay = optimizer.weight_decay
    direction = _make_direction(optimizer, network, DTYPES[precision.moments], mesh, rules)
    limit, resolved = optimizer.update_rms_limit, optimizer.resolved()
    if limit is not None:
        direction = _then(direction, lambda updates, _: clip_update_rms(network, limit, updates))
    if isinstance(resolved, Adafactor) and resolved.scale_by_parameters:
        direction = _then(direction, partial(scale_by_param_rms, network))
    decayed = optax.add_decayed_weights(decay.rate, mask=partial(decay_mask, network, decay.exclude))
    return optax.chain(
        optax.identity(),  # the states of checkpoints are numbered: clipping once had number 0
        direction,
        _then(decayed, partial(_scale_rates, optimizer)) if optimizer.learning_rates else decayed,
    )


def _make_direction(
    optimizer: Optimizer, network: Network, moment_dtype: Any, mesh: Mesh | None, rules: Table
) -> optax.GradientTransformation:
    match optimizer.resolved():
        case AdamW() as adamw:
            return scale_by_adam(adamw, moment_dtype)
        case Adafactor() as adafactor:
            return scale_by_factored_rms(adafactor, network)
        case Lion() as lion:
            return optax.scale_by_lion(b1=lion.beta1, b2=lion.beta2, mu_dtype=moment_dtype)
        case Muon() as muon:
            return scale_by_muon_and_adam(muon, network, moment_dtype, mesh, rules)
        case Sgd(momentum=None):
            return optax.identity()
        case Sgd(momentum=float(momentum), nesterov=nesterov):
            return optax.trace(momentum, nesterov=nesterov, accumulator_dtype=moment_dtype)


def _then(first: optax.GradientTransformation, change: Callable[[Params, Any], Params]) -> optax.GradientTransformation:
    """Return a transformation followed by another one without state. A checkpoint fits both alike, unlike `chain`."""

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        updates, state = first.update(updates, state, params)
        return change(updates, params), state

    return optax.GradientTransformation(first.init, update)


def _scale_rates(optimizer: Optimizer, updates: Params, _: Any) -> Params:
    """Return updates times the factors of their learning rates."""
    scaled: Params = jax.tree_util.tree_map_with_path(
        lambda path, update: find_rate_scale(optimizer, tensor_name(path)) * update, updates
    )
    return scaled


def decay_mask(network: Network, exclude: Collection[DecayClass], params: Params) -> Any:
    """Return which parameters have weight decay: those of tensors whose kind is not excluded."""
    decayed = {tensor.name: tensor.decay not in exclude for tensor in network.tensors}
    return jax.tree_util.tree_map_with_path(lambda path, _: decayed[tensor_name(path)], params)
