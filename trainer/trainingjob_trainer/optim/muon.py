"""Muon (Jordan, https://kellerjordan.github.io/posts/muon): orthogonalized momentum for the matrices of layers.

Optax's transformation runs on whole matrices, however the mesh shards them. The other tensors have AdamW.
"""

import math
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import is_orthogonalized
from trainingjob_api.spec.optimizer import AdamW, Muon
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name


def scale_by_muon_and_adam(muon: Muon, network: Network, moment_dtype: Any) -> optax.GradientTransformation:
    """Return the direction of an update: of Muon for the matrices of layers, of Adam for the other tensors."""
    matrices = {
        tensor.name: MuonDimensionNumbers(tensor.input_dims, tensor.output_dims)
        for tensor in network.tensors
        if is_orthogonalized(tensor)
    }

    def find_group(path: Any, _: Any) -> str:
        return "muon" if tensor_name(path) in matrices else "adamw"

    def find_dims(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: matrices[tensor_name(path)], params)

    orthogonalize = scale_by_muon(
        ns_steps=muon.newton_schulz_steps,
        beta=muon.momentum,
        mu_dtype=moment_dtype,
        weight_dimension_numbers=find_dims,
    )
    factors = {
        tensor.name: update_scale(tensor, muon.rms_scale) for tensor in network.tensors if tensor.name in matrices
    }

    def scale(updates: Params, _: Params | None) -> Params:
        scaled: Params = jax.tree_util.tree_map_with_path(
            lambda path, update: factors[tensor_name(path)] * update, updates
        )
        return scaled

    return optax.partition(
        {
            "muon": optax.chain(orthogonalize, optax.stateless(scale)),
            "adamw": scale_by_adam(muon.adamw, moment_dtype),
        },
        lambda params: jax.tree_util.tree_map_with_path(find_group, params),
    )


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
