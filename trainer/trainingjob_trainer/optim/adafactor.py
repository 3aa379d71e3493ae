"""Adafactor (Shazeer and Stern, arXiv 1804.04235): the second moment of a matrix from the sums of its rows and columns.

The numbers are those of `optax.adafactor` for each matrix of a layer and expert, with heads as columns or rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import is_factored
from trainingjob_api.spec.optimizer import Adafactor
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.optim.clipping import root_mean_squares

EPSILON = 1e-30
"""Constant added to squared gradients."""
MIN_PARAM_RMS = 1e-3
"""Least root mean square of parameters that scales an update."""


class AdafactorState(NamedTuple):
    """Second moments, as trees of parameters. A tensor has `v`, or `v_row` and `v_col` in its place."""

    num_updates: jax.Array
    v_row: Any
    """Means over the outputs of a matrix."""
    v_col: Any
    """Means over the inputs of a matrix."""
    v: Any


def scale_by_factored_rms(adafactor: Adafactor, network: Network) -> optax.GradientTransformation:
    """Return the direction of an update: gradients by the root of their second moment."""
    tensors = {tensor.name: tensor for tensor in network.tensors}

    def find_parts(path: Any) -> Tensor | None:  # None: the second moment is whole
        tensor = tensors[tensor_name(path)]
        return tensor if is_factored(tensor, adafactor.min_factored_size) else None

    def init(params: Params) -> AdafactorState:
        def zeros(path: Any, param: jax.Array, slot: str) -> Any:
            tensor = find_parts(path)
            if (tensor is None) != (slot == "v"):
                return optax.MaskedNode()
            dims = () if tensor is None else tensor.output_dims if slot == "v_row" else tensor.input_dims
            return jnp.zeros([size for dim, size in enumerate(param.shape) if dim not in dims], jnp.float32)

        trees = (
            jax.tree_util.tree_map_with_path(lambda path, param, slot=slot: zeros(path, param, slot), params)
            for slot in ("v_row", "v_col", "v")
        )
        return AdafactorState(jnp.zeros((), jnp.int32), *trees)

    def update(grads: Params, state: AdafactorState, params: Params | None = None) -> tuple[Params, AdafactorState]:
        del params
        share = (state.num_updates + 1.0) ** -adafactor.decay_rate

        def move(old: jax.Array, new: jax.Array) -> jax.Array:
            return old + share * (new - old)

        def apply(path: Any, grad: jax.Array, row: Any, col: Any, whole: Any) -> tuple[Any, ...]:
            square, tensor = jnp.square(grad) + EPSILON, find_parts(path)
            if tensor is None:
                whole = move(whole, square)
                return grad * jax.lax.rsqrt(whole), row, col, whole
            outputs, inputs = tensor.output_dims, tensor.input_dims
            row, col = move(row, jnp.mean(square, outputs)), move(col, jnp.mean(square, inputs))
            rows = jnp.expand_dims(row, outputs)
            factor = jax.lax.rsqrt(rows / jnp.mean(rows, inputs, keepdims=True))
            return grad * factor * jax.lax.rsqrt(jnp.expand_dims(col, inputs)), row, col, whole

        found = jax.tree_util.tree_map_with_path(apply, grads, state.v_row, state.v_col, state.v)
        is_result = lambda node: isinstance(node, tuple) and not isinstance(node, optax.MaskedNode)  # noqa: E731
        updates, *moments = (jax.tree.map(lambda result, n=n: result[n], found, is_leaf=is_result) for n in range(4))
        return updates, AdafactorState(state.num_updates + 1, *moments)

    return optax.GradientTransformation(init, update)


def scale_by_param_rms(network: Network, updates: Params, params: Params) -> Params:
    """Return updates times the root mean square of the parameters of each matrix or vector."""
    scaled: Params = jax.tree.map(
        lambda update, rms: update * jnp.maximum(rms, MIN_PARAM_RMS), updates, root_mean_squares(network, params)
    )
    return scaled
