"""Experts without capacity: tokens are sorted by expert, and `jax.lax.ragged_dot` multiplies each run by its matrix.

The devices along `expert` gather their tokens, run their own experts on them, and reduce-scatter the results. Sums over
devices, and over the experts of a token, are in float32.

Shapes: B batch, L length, D model width, F MLP width, E experts, S tokens of a device, k experts of a token, R rows: a
row for each token and each of its experts.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls
from trainingjob_trainer.kernels.quantized_ragged_dot import ShardedDims, quantized_ragged_dot
from trainingjob_trainer.kernels.stage_products import multiply_rows
from trainingjob_trainer.parallel.sharding import Axes, copy_for_shards, map_shards

TOKENS: Axes = ("batch", "length", None)
MATRIX_AXES: Mapping[str, Axes] = {
    "gate": ("experts", None, "mlp"),
    "up": ("experts", None, "mlp"),
    "down": ("experts", "mlp", None),
    "gate_bias": ("experts", "mlp"),
    "up_bias": ("experts", "mlp"),
    "down_bias": ("experts", None),
}

type Hidden = Callable[[Callable[[str], jax.Array]], jax.Array]
"""Function from the input projections of an MLP, which are computed by name, to its hidden values."""


def run_sorted_experts(
    x_BLD: jax.Array,
    weights_BLE: jax.Array,
    chosen_BLE: jax.Array,
    matrices: Mapping[str, jax.Array],
    *,
    per_token: int,
    activate: Hidden,
    is_input_weighted: bool,
    quantized: QuantizedMatmuls | None,
) -> jax.Array:
    """Return the weighted sum of the results of each token's experts [B, L, D].

    Args:
        x_BLD: tokens.
        weights_BLE: weight of each expert for each token, in float32.
        chosen_BLE: 1 at the `per_token` experts of each token, and 0 elsewhere.
        matrices: matrices and biases of the experts by name, as in `MATRIX_AXES`, in the compute format.
        per_token: number of experts of a token.
        activate: hidden values of an expert.
        is_input_weighted: whether the weights scale the inputs of the experts, not their outputs.
        quantized: matrices whose matmuls are quantized. None: there are none.
    """
    names = tuple(matrices)
    # Each device gets separate copies. Otherwise the sums of their gradients would be in bfloat16.
    copies = [copy_for_shards(matrices[name], ("expert_batch", "length"), MATRIX_AXES[name]) for name in names]
    x_1BLD = copy_for_shards(x_BLD, ("mlp",), TOKENS)
    is_sharded = not jax.sharding.get_abstract_mesh().empty

    def run(x_1BLD: jax.Array, weights_BLE: jax.Array, chosen_BLE: jax.Array, *copies: jax.Array) -> jax.Array:
        own = {name: copy[0, 0] for name, copy in zip(names, copies, strict=True)}
        experts = _Experts(
            own, per_token, activate, quantized, is_input_weighted=is_input_weighted, is_sharded=is_sharded
        )
        return experts.run(x_1BLD[0], weights_BLE, chosen_BLE)

    in_axes = [("mlp", *TOKENS), TOKENS, TOKENS, *(("expert_batch", "length", *MATRIX_AXES[name]) for name in names)]
    return map_shards(run, in_axes, TOKENS)(x_1BLD, weights_BLE, chosen_BLE, *copies)


class _Experts:
    """The experts of one device."""

    def __init__(
        self,
        matrices: Mapping[str, jax.Array],
        per_token: int,
        activate: Hidden,
        quantized: QuantizedMatmuls | None,
        *,
        is_input_weighted: bool,
        is_sharded: bool,
    ) -> None:
        self._matrices = matrices
        self._per_token = per_token
        self._activate = activate
        self._quantized = quantized
        self._is_input_weighted = is_input_weighted
        self._is_sharded = is_sharded
        self._count = matrices["down"].shape[0]

    def run(self, x_BLD: jax.Array, weights_BLE: jax.Array, chosen_BLE: jax.Array) -> jax.Array:
        """Return the sum over all experts for the tokens of this device."""
        shape = x_BLD.shape
        x_SD, weights_SE, chosen_SE = (array.reshape(-1, array.shape[-1]) for array in (x_BLD, weights_BLE, chosen_BLE))
        first: jax.Array | int = 0
        if self._is_sharded:
            x_SD, weights_SE, chosen_SE = _gather(x_SD), _gather(weights_SE), _gather(chosen_SE)
            first = self._count * jax.lax.axis_index("expert")
        experts_Sk = jax.lax.top_k(chosen_SE, self._per_token)[1]
        weights_Sk = jnp.sum(
            jnp.where(
                experts_Sk[..., None] == jnp.arange(weights_SE.shape[-1])[None, None, :], weights_SE[:, None], 0.0
            ),
            axis=-1,
        )
        experts_R = experts_Sk.reshape(-1) - first
        is_own_R = (experts_R >= 0) & (experts_R < self._count)
        # Rows of the experts of other devices come last and belong to no expert here.
        order_R = jnp.argsort(jnp.where(is_own_R, experts_R, self._count))
        y_SkD = self._run_rows(x_SD, weights_Sk, experts_R, is_own_R, order_R).reshape(-1, self._per_token, shape[-1])
        output_weights_Sk = jnp.ones_like(weights_Sk) if self._is_input_weighted else weights_Sk
        y_SD = jnp.einsum(
            "SkD,Sk->SD", y_SkD, output_weights_Sk.astype(y_SkD.dtype), preferred_element_type=jnp.float32
        )
        if self._is_sharded:
            y_SD = _reduce_scatter(jax.lax.psum(y_SD, "tensor"), x_BLD.dtype)
        return y_SD.astype(x_BLD.dtype).reshape(shape)

    def _run_rows(
        self, x_SD: jax.Array, weights_Sk: jax.Array, experts_R: jax.Array, is_own_R: jax.Array, order_R: jax.Array
    ) -> jax.Array:
        """Return the results of this device's experts for each row, and zeros for the other rows."""
        places_R = jnp.argsort(order_R)
        rows_RD = _sort_tokens(self._per_token, x_SD, order_R, places_R)
        if self._is_input_weighted:
            rows_RD *= _permute(weights_Sk.reshape(-1), order_R, places_R).astype(rows_RD.dtype)[:, None]
        is_expert_RE = experts_R[order_R][:, None] == jnp.arange(self._count)[None, :]
        sizes_E = jnp.sum(is_expert_RE, axis=0, dtype=jnp.int32)

        def project(name: str, rows: jax.Array) -> jax.Array:
            rows = self._multiply(name, rows, sizes_E)
            if f"{name}_bias" not in self._matrices:
                return rows
            bias_EF = self._matrices[f"{name}_bias"]
            return rows + jnp.einsum("RE,EF->RF", is_expert_RE.astype(rows.dtype), bias_EF)

        hidden_RF = self._activate(lambda name: project(name, rows_RD))
        results_RD = self._multiply("down", hidden_RF, sizes_E)
        if "down_bias" in self._matrices:
            bias_ED = self._matrices["down_bias"]
            if self._is_sharded:  # the results are summed over `tensor`
                bias_ED = jnp.where(jax.lax.axis_index("tensor") == 0, bias_ED, jnp.zeros_like(bias_ED))
            results_RD += jnp.einsum("RE,ED->RD", is_expert_RE.astype(results_RD.dtype), bias_ED)
        # `ragged_dot` may leave rows without an expert undefined.
        results_RD = jnp.where(is_own_R[order_R][:, None], results_RD, jnp.zeros_like(results_RD))
        return _permute(results_RD, places_R, order_R)

    def _multiply(self, name: str, rows: jax.Array, sizes_E: jax.Array) -> jax.Array:
        """Return the product of each row and a matrix of its expert."""
        quantized_type = self._quantized.type_of(name) if self._quantized else None
        if quantized_type is None:
            return multiply_rows(rows, self._matrices[name], sizes_E)
        axes = ("tensor",) if self._is_sharded else ()
        sharded = ShardedDims(inputs=axes) if name == "down" else ShardedDims(outputs=axes)
        return quantized_ragged_dot(quantized_type, sharded, rows, self._matrices[name], sizes_E)


@jax.custom_vjp
def _gather(x_SD: jax.Array) -> jax.Array:
    """Return the tokens of all devices along `expert`."""
    gathered: jax.Array = jax.lax.all_gather(x_SD, "expert", tiled=True)
    return gathered


def _sum_gathered(kind: Any, grads_SD: jax.Array) -> tuple[jax.Array]:
    sums = jax.lax.psum_scatter(grads_SD.astype(jnp.float32), "expert", tiled=True)
    return (sums.astype(kind.dtype),)


_gather.defvjp(lambda x_SD: (_gather(x_SD), jnp.zeros((), x_SD.dtype)), _sum_gathered)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _reduce_scatter(y_SD: jax.Array, dtype: Any) -> jax.Array:
    """Return the sums of results over the devices along `expert`, for the tokens of this device."""
    sums: jax.Array = jax.lax.psum_scatter(y_SD, "expert", tiled=True)
    return sums


def _gather_grads(dtype: Any, _: None, grads_SD: jax.Array) -> tuple[jax.Array]:
    gathered = jax.lax.all_gather(grads_SD.astype(dtype), "expert", tiled=True)
    return (gathered.astype(jnp.float32),)


_reduce_scatter.defvjp(lambda y_SD, dtype: (_reduce_scatter(y_SD, dtype), None), _gather_grads)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sort_tokens(per_token: int, x_SD: jax.Array, order_R: jax.Array, places_R: jax.Array) -> jax.Array:
    """Return the tokens in the order of rows. `places_R` is the inverse of the order."""
    return x_SD[order_R // per_token]


def _sum_rows(per_token: int, places_R: jax.Array, grads_RD: jax.Array) -> tuple[jax.Array, None, None]:
    grads_SkD = grads_RD[places_R].reshape(-1, per_token, grads_RD.shape[-1])
    return jnp.sum(grads_SkD.astype(jnp.float32), axis=1).astype(grads_RD.dtype), None, None


_sort_tokens.defvjp(
    lambda per_token, x_SD, order_R, places_R: (_sort_tokens(per_token, x_SD, order_R, places_R), places_R), _sum_rows
)


@jax.custom_vjp
def _permute(rows: jax.Array, order_R: jax.Array, places_R: jax.Array) -> jax.Array:
    """Return rows in another order. `places_R` is the inverse of the order."""
    return rows[order_R]


_permute.defvjp(
    lambda rows, order_R, places_R: (rows[order_R], places_R), lambda places_R, grads: (grads[places_R], None, None)
)
