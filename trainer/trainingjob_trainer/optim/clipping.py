"""Limits of gradients and updates.

Each limit has one definition for all meshes: the norm is that of all gradients, and a root mean square that of one
matrix or vector of one layer and expert, whole.
"""

import jax
import jax.numpy as jnp

from trainingjob_api.network.network import Network
from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name


def clip_factor(optimizer: Optimizer, grad_norm: jax.Array) -> jax.Array:
    """Return the factor that limits gradients of a global norm to the norm that the spec allows."""
    if not optimizer.clip_norm:
        return jnp.ones_like(grad_norm)
    return jnp.where(grad_norm < optimizer.clip_norm, 1.0, optimizer.clip_norm / grad_norm)


def clip_values(optimizer: Optimizer, grad: jax.Array) -> jax.Array:
    """Return a gradient whose values are limited to the absolute value that the spec allows."""
    limit = optimizer.clip_value
    return grad if limit is None else jnp.clip(grad, -limit, limit)


def clip_update_rms(network: Network, limit: float, updates: Params) -> Params:
    """Return updates, scaled down where the root mean square of a matrix or vector is above a limit.

    The factor is 1 / max(1, rms / limit), as in Adafactor (Shazeer and Stern, arXiv 1804.04235, section 6).
    """
    clipped: Params = jax.tree.map(
        lambda update, rms: update / jnp.maximum(1.0, rms / limit), updates, root_mean_squares(network, updates)
    )
    return clipped


def root_mean_squares(network: Network, params: Params) -> Params:
    """Return the root mean square of each matrix or vector, as arrays that broadcast to the parameters."""
    stack_dims = {tensor.name: tensor.num_stack_dims for tensor in network.tensors}

    def measure(path: object, param: jax.Array) -> jax.Array:
        dims = tuple(range(stack_dims[tensor_name(path)], param.ndim))
        return jnp.sqrt(jnp.mean(jnp.square(param), axis=dims, keepdims=True))

    measured: Params = jax.tree_util.tree_map_with_path(measure, params)
    return measured
