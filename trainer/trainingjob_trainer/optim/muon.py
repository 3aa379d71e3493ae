"""Muon (Jordan, https://kellerjordan.github.io/posts/muon): orthogonalized momentum for the matrices of layers.

Optax's transformation runs on whole matrices, however the mesh shards them: devices exchange their parts of all
matrices for all parts of some, as in the distributed Muon of Liu et al. (arXiv 2502.16982). The other tensors have
AdamW.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import count_whole_matrices, is_orthogonalized
from trainingjob_api.sharding import Table
from trainingjob_api.spec.optimizer import AdamW, Muon
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.parallel.sharding import partition_spec


def scale_by_muon_and_adam(
    muon: Muon, network: Network, moment_dtype: Any, mesh: Mesh | None, rules: Table
) -> optax.GradientTransformation:
    """Return the direction of an update: of Muon for the matrices of layers, of Adam for the other tensors."""
    matrices = {tensor.name: tensor for tensor in network.tensors if is_orthogonalized(tensor)}

    def find_group(path: Any, _: Any) -> str:
        return "muon" if tensor_name(path) in matrices else "adamw"

    def find_dims(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: _number_dims(matrices[tensor_name(path)]), params)

    # Without iterations it returns the momentum, scaled to a Frobenius norm of 1.
    momentum = scale_by_muon(ns_steps=0, beta=muon.momentum, mu_dtype=moment_dtype, weight_dimension_numbers=find_dims)

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        updates, state = momentum.update(updates, state, params)
        iterate = partial(_iterate, muon.newton_schulz_steps)

        def orthogonalize(path: Any, x: jax.Array) -> jax.Array:
            tensor = matrices[tensor_name(path)]
            return update_scale(tensor, muon.rms_scale) * _share_matrices(iterate, tensor, mesh, rules, x)

        return jax.tree_util.tree_map_with_path(orthogonalize, updates), state

    return optax.partition(
        {
            # A chain, because the states of checkpoints are numbered.
            "muon": optax.chain(optax.GradientTransformation(momentum.init, update), optax.identity()),
            "adamw": scale_by_adam(muon.adamw, moment_dtype),
        },
        lambda params: jax.tree_util.tree_map_with_path(find_group, params),
    )


def _number_dims(tensor: Tensor, num_stacked: int | None = None) -> MuonDimensionNumbers:
    """Return the dims of inputs and outputs of a tensor, or those of it with so many stacked dims."""
    shift = 0 if num_stacked is None else num_stacked - tensor.num_stack_dims
    inputs, outputs = (tuple(dim + shift for dim in dims) for dims in (tensor.input_dims, tensor.output_dims))
    return MuonDimensionNumbers(inputs, outputs)


def _iterate(num_steps: int, dims: MuonDimensionNumbers, x: jax.Array) -> jax.Array:
    """Return the orthogonalized matrices of an array: Muon's update without momentum."""
    newton_schulz = scale_by_muon(ns_steps=num_steps, beta=0.0, nesterov=False, weight_dimension_numbers=dims)
    done: jax.Array = newton_schulz.update(x, newton_schulz.init(x))[0]
    return done


def _share_matrices(
    iterate: Callable[[MuonDimensionNumbers, jax.Array], jax.Array],
    tensor: Tensor,
    mesh: Mesh | None,
    rules: Table,
    x: jax.Array,
) -> jax.Array:
    """Return the orthogonalized matrices of a tensor: each device iterates whole ones, if it shards them."""
    if mesh is None:
        return iterate(_number_dims(tensor), x)
    spec = partition_spec(tensor.axes, x.shape, mesh, rules)
    axes = tuple(axis for entry in spec if entry for axis in ((entry,) if isinstance(entry, str) else entry))
    shards = math.prod(mesh.shape[axis] for axis in axes)
    num_matrices = math.prod(x.shape[: tensor.num_stack_dims])
    each = count_whole_matrices(num_matrices, shards)
    if not each:
        return iterate(_number_dims(tensor), x)
    of_matrices, of_parts = (NamedSharding(mesh, partition) for partition in (PartitionSpec(axes), spec))
    stack = x.reshape(num_matrices, *x.shape[tensor.num_stack_dims :])
    stack = jnp.pad(stack, [(0, each * shards - num_matrices), *[(0, 0)] * (stack.ndim - 1)])
    whole = jax.lax.with_sharding_constraint(stack, of_matrices)
    done = jax.lax.with_sharding_constraint(iterate(_number_dims(tensor, 1), whole), of_matrices)
    parts: jax.Array = jax.lax.with_sharding_constraint(done[:num_matrices].reshape(x.shape), of_parts)
    return parts


def scale_by_adam(adamw: AdamW, moment_dtype: Any) -> optax.GradientTransformation:
    """Return the direction of an update of Adam."""
    return optax.scale_by_adam(
        b1=adamw.beta1, b2=adamw.beta2, eps=adamw.epsilon, eps_root=adamw.epsilon_root, mu_dtype=moment_dtype
    )


def update_scale(tensor: Tensor, rms: float | None) -> float:
    """Return the factor of an orthogonalized update.

    With `rms`, all updates have this root mean square (Liu et al., arXiv 2502.16982). Without it, the factor is the
    root of outputs by inputs if there are more outputs (https://github.com/KellerJordan/Muon).
    """
    inputs, outputs = tensor.matrix_shape
    return math.sqrt(max(1.0, outputs / inputs)) if rms is None else rms * math.sqrt(max(inputs, outputs))
