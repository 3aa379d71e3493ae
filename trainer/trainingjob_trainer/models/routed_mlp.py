"""Mixture of experts in a layer, with capacity slots or without.

Without them, tokens are sorted by expert (`kernels.grouped_matmul`), and none is dropped. Routing with slots follows
GShard (Lepikhin et al., arXiv 2006.16668): each expert has a number of capacity slots for each routing group. One-hot
matmuls move tokens to their slots and back, and the partitioner turns them into all-to-alls where experts are sharded.
Two things differ from GShard. A routing group lies inside one sequence, so that the split of the batch over devices and
gradient-accumulation steps changes the routing of no token. Earlier tokens take slots first, whatever their choice, so
that no token depends on later ones.

Shapes: B batch, L length, D model width, F MLP width, E experts, N routing groups of a sequence, T tokens of a group, C
capacity slots of an expert for a group.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.network import Network
from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.kernels.grouped_matmul import run_sorted_experts
from trainingjob_trainer.models.lora import multiply, read_matrix
from trainingjob_trainer.models.mlp import MLP, activate
from trainingjob_trainer.models.params import DTYPES, add_bias, add_params
from trainingjob_trainer.models.remat import name_product
from trainingjob_trainer.models.router import choose_experts, score_experts, track_load
from trainingjob_trainer.parallel.sharding import constrain


class RoutingStats(NamedTuple):
    """Routing statistics of each sequence [B], summed over layers; in a layer, means over the counted tokens."""

    load_balance: jax.Array
    """Load-balancing loss (Fedus et al., arXiv 2101.03961): 1 if all experts get equally many tokens, else more."""
    dropped: jax.Array
    """Share of the router's choices that were dropped because the expert had no free slot."""
    load: jax.Array | None = None
    """Zeros, whose gradient is the load of each expert, for the biases that balance it. None: no layer has them."""


def zero_routing_stats(x_BLD: jax.Array, network: Network) -> RoutingStats | None:  # None: no layer has experts
    """Return the routing statistics of the sequences before the first layer: zeros."""
    if not network.num_routed_layers:
        return None
    nothing_B = jnp.zeros_like(x_BLD, shape=x_BLD.shape[:1], dtype=jnp.float32)
    return RoutingStats(nothing_B, nothing_B, nothing_B if network.balance_rate else None)


class RoutedMLP(nnx.Module):
    """Mixture of experts: the weighted MLPs that the router chooses for each token, and MLPs shared by all tokens."""

    router: nnx.Param[Any]
    router_bias: nnx.Param[Any]
    balance_bias: nnx.Param[Any]
    quantized: QuantizedMatmuls | None = None

    def __init__(self, part: RoutedMlp, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.own_tensors, precision, rngs)
        if part.shared:
            self.shared = MLP(part.shared, precision, rngs)
        self.experts = part.experts
        self.options = part.options
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x_BLD: jax.Array, is_counted_BL: jax.Array | None = None) -> tuple[jax.Array, RoutingStats]:
        """Return the experts' output, which is added to the residual, and the routing statistics.

        `is_counted_BL`: the tokens that the statistics count. None: all.
        """
        B, L, D = x_BLD.shape
        T = self.experts.group_size(L)
        # A group of dropless tokens may be a whole sequence, of which each device along `context` has a part.
        group_axes = ("length", None) if T < L else (None, "length")
        x_BNTD = constrain(x_BLD.reshape(B, L // T, T, D), "batch", *group_axes, None)
        counts_BNT = jnp.ones((B, L // T, T), jnp.float32)
        if is_counted_BL is not None:
            counts_BNT = is_counted_BL.astype(jnp.float32).reshape(counts_BNT.shape)
        weights_BNTE, chosen_BNTE, routing = self._route(x_BNTD, counts_BNT)
        if self.experts.dispatch == "dropless":
            weights_BLE, chosen_BLE = (array.reshape(B, L, -1) for array in (weights_BNTE, chosen_BNTE))
            y_BLD = self._sort_tokens(x_BLD, weights_BLE, chosen_BLE)
        else:
            y_BNTD, dropped_B = self._fill_slots(x_BNTD, weights_BNTE, chosen_BNTE, counts_BNT)
            y_BLD, routing = y_BNTD.reshape(B, L, D), routing._replace(dropped=dropped_B)
        return y_BLD + self.shared(x_BLD) if self.experts.shared else y_BLD, routing

    def _route(self, x_BNTD: jax.Array, counts_BNT: jax.Array) -> tuple[jax.Array, jax.Array, RoutingStats]:
        """Return each token's weight for each expert, 1 at its experts, and the statistics if none is dropped."""
        E, k = self.experts.count, self.experts.per_token
        router_DE = self.router[...].astype(jnp.float32)
        logits_BNTE = jnp.einsum("BNTD,DE->BNTE", x_BNTD.astype(jnp.float32), router_DE, precision="highest")
        if self.experts.router_bias:
            logits_BNTE = add_bias(logits_BNTE, self.router_bias[...])
        scores_BNTE, probabilities_BNTE = score_experts(logits_BNTE, self.experts)
        bias_E = self.balance_bias[...] if self.experts.balance.bias_rate else None
        chosen_BNTE = choose_experts(scores_BNTE, bias_E, self.experts)
        counted_BNTE = chosen_BNTE * counts_BNT[..., None]
        load_B = None if bias_E is None else track_load(bias_E, counted_BNTE)
        weights_BNTE = scores_BNTE * chosen_BNTE
        if self.experts.normalize_weights:
            weights_BNTE /= jnp.sum(weights_BNTE, axis=-1, keepdims=True)
        weights_BNTE *= self.experts.weight_scale
        sizes_BN = jnp.sum(counts_BNT, axis=2)
        sums_BNE = jnp.sum(counted_BNTE, axis=2), jnp.sum(probabilities_BNTE * counts_BNT[..., None], axis=2)
        shares_BNE, means_BNE = (sum_BNE / jnp.maximum(sizes_BN, 1.0)[..., None] for sum_BNE in sums_BNE)
        balance_BN = E / k * jnp.sum(shares_BNE * means_BNE, axis=-1)
        balance_B = jnp.sum(balance_BN * sizes_BN, axis=1) / jnp.maximum(jnp.sum(sizes_BN, axis=1), 1.0)
        return weights_BNTE, chosen_BNTE, RoutingStats(balance_B, jnp.zeros_like(balance_B), load_B)

    def _sort_tokens(self, x_BLD: jax.Array, weights_BLE: jax.Array, chosen_BLE: jax.Array) -> jax.Array:
        """Return the output of the experts of all tokens."""
        names = ["gate", "up", "down"] if self.options.gated else ["up", "down"]
        names += [f"{name}_bias" for name in names] if self.options.bias else []
        return run_sorted_experts(
            x_BLD,
            weights_BLE,
            chosen_BLE,
            {name: read_matrix(self, name) for name in names},
            per_token=self.experts.per_token,
            activate=partial(activate, self.options),
            is_input_weighted=self.experts.weighting == "input",
            quantized=self.quantized,
        )

    def _fill_slots(
        self, x_BNTD: jax.Array, weights_BNTE: jax.Array, chosen_BNTE: jax.Array, counts_BNT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the output of the experts of the tokens that found a slot, and the share of dropped choices [B]."""
        capacity = self.experts.capacity(x_BNTD.shape[1] * x_BNTD.shape[2])
        slot_BNTE = jnp.cumsum(chosen_BNTE, axis=2) - 1  # position among the expert's tokens, in sequence order
        dispatched_BNTE = chosen_BNTE * (slot_BNTE < capacity)
        is_slot_BNTEC = slot_BNTE[..., None] == jnp.arange(capacity)[None, None, None, None, :]
        dispatch_BNTEC = (is_slot_BNTEC & (dispatched_BNTE[..., None] > 0)).astype(self.dtype)
        x_BNECD = jnp.einsum("BNTEC,BNTD->BNECD", dispatch_BNTEC, x_BNTD)
        weights_BNEC = jnp.einsum("BNTEC,BNTE->BNEC", dispatch_BNTEC, weights_BNTE).astype(self.dtype)
        # As a matmul, because it sums the gradients of the weights in float32.
        if self.experts.weighting == "input":
            y_BNECD = self._run_experts(jnp.einsum("BNECD,BNEC->BNECD", x_BNECD, weights_BNEC))
        else:
            y_BNECD = jnp.einsum("BNECD,BNEC->BNECD", self._run_experts(x_BNECD), weights_BNEC)
        y_BNTD = jnp.einsum("BNTEC,BNECD->BNTD", dispatch_BNTEC, y_BNECD)
        dropped_B = jnp.sum((chosen_BNTE - dispatched_BNTE) * counts_BNT[..., None], axis=(1, 2, 3))
        num_choices_B = self.experts.per_token * jnp.maximum(jnp.sum(counts_BNT, axis=(1, 2)), 1.0)
        return y_BNTD, dropped_B / num_choices_B

    def _run_experts(self, x_BNECD: jax.Array) -> jax.Array:
        """Return the output of each expert for its tokens, which move to the expert and back."""
        x_BNECD = constrain(x_BNECD, "batch", "length", None, None, None)
        x_BNECD = constrain(x_BNECD, "expert_batch", "length", "experts", None, None)
        hidden_BNECF = activate(self.options, lambda name: self._project(name, "BNECD,EDF->BNECF", x_BNECD))
        y_BNECD = self._project("down", "BNECF,EFD->BNECD", hidden_BNECF)
        y_BNECD = constrain(y_BNECD, "expert_batch", "length", "experts", None, None)
        return constrain(y_BNECD, "batch", "length", None, None, None)

    def _project(self, name: str, equation: str, x_BNEC: jax.Array) -> jax.Array:
        """Return the product with the matrices of the experts, with their biases, in the compute format."""
        x_BNEC = multiply(self, name, equation, x_BNEC)
        x_BNEC = add_bias(x_BNEC, getattr(self, f"{name}_bias")[...][:, None]) if self.options.bias else x_BNEC
        return name_product(x_BNEC, name)
