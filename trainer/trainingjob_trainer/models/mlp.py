"""Feed-forward part of a layer: one MLP for all tokens, or routed experts.

Routing follows GShard (Lepikhin et al., arXiv 2006.16668): each expert has a number of capacity slots for each routing
group. One-hot matmuls move tokens to their slots and back, and the partitioner turns them into all-to-alls where
experts are sharded. Two things differ from GShard. A routing group lies inside one sequence, so that the split of the
batch over devices and gradient-accumulation steps changes the routing of no token. Earlier tokens take slots first,
whatever their choice, so that no token depends on later ones.

Shapes: B batch, L length, D model width, F MLP width, E experts, N routing groups of a sequence, T tokens of a group, C
capacity slots of an expert for a group.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.mlp import GatedMlp
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.params import DTYPES, add_params
from trainingjob_trainer.parallel.sharding import constrain


class RoutingStats(NamedTuple):
    """Routing statistics of each sequence [B], summed over layers; in a layer, means over routing groups."""

    load_balance: jax.Array
    """Load-balancing loss (Fedus et al., arXiv 2101.03961): 1 if all experts get equally many tokens, else more."""
    dropped: jax.Array
    """Share of the router's choices that were dropped because the expert had no free slot."""


def zero_routing_stats(x_BLD: jax.Array) -> RoutingStats:
    """Return the routing statistics of the sequences before the first layer: zeros."""
    nothing_B = jnp.zeros_like(x_BLD, shape=x_BLD.shape[:1], dtype=jnp.float32)
    return RoutingStats(nothing_B, nothing_B)


class MLP(nnx.Module):
    """Gated SiLU MLP."""

    gate: nnx.Param[Any]
    up: nnx.Param[Any]
    down: nnx.Param[Any]

    def __init__(self, part: GatedMlp, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.tensors, precision, rngs)
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Return the MLP's output, which is added to the residual."""
        gate_BLF = jnp.einsum("BLD,DF->BLF", x_BLD, self.gate[...].astype(self.dtype))
        up_BLF = jnp.einsum("BLD,DF->BLF", x_BLD, self.up[...].astype(self.dtype))
        return jnp.einsum("BLF,FD->BLD", jax.nn.silu(gate_BLF) * up_BLF, self.down[...].astype(self.dtype))


class RoutedMLP(nnx.Module):
    """Mixture of experts: the weighted MLPs that the router chooses for each token, and MLPs shared by all tokens."""

    router: nnx.Param[Any]
    gate: nnx.Param[Any]
    up: nnx.Param[Any]
    down: nnx.Param[Any]

    def __init__(self, part: RoutedMlp, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.own_tensors, precision, rngs)
        if part.shared:
            self.shared = MLP(part.shared, precision, rngs)
        self.experts = part.experts
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x_BLD: jax.Array) -> tuple[jax.Array, RoutingStats]:
        """Return the experts' output, which is added to the residual, and the routing statistics."""
        B, L, D = x_BLD.shape
        T = self.experts.group_size(L)
        x_BNTD = constrain(x_BLD.reshape(B, L // T, T, D), "batch", "length", None, None)
        weights_BNTE, dispatch_BNTEC, routing = self._route(x_BNTD)
        x_BNECD = jnp.einsum("BNTEC,BNTD->BNECD", dispatch_BNTEC, x_BNTD)
        y_BNECD = self._run_experts(x_BNECD)
        weights_BNEC = jnp.einsum("BNTEC,BNTE->BNEC", dispatch_BNTEC, weights_BNTE)
        # As a matmul, because it sums the gradients of the weights in float32.
        y_BNECD = jnp.einsum("BNECD,BNEC->BNECD", y_BNECD, weights_BNEC.astype(self.dtype))
        y_BLD = jnp.einsum("BNTEC,BNECD->BNTD", dispatch_BNTEC, y_BNECD).reshape(B, L, D)
        return y_BLD + self.shared(x_BLD) if self.experts.shared else y_BLD, routing

    def _route(self, x_BNTD: jax.Array) -> tuple[jax.Array, jax.Array, RoutingStats]:
        """Return each token's weight for each expert, one-hot capacity slots, and the routing statistics."""
        E, k = self.experts.count, self.experts.per_token
        capacity = self.experts.capacity(x_BNTD.shape[1] * x_BNTD.shape[2])
        router_DE = self.router[...].astype(jnp.float32)
        logits_BNTE = jnp.einsum("BNTD,DE->BNTE", x_BNTD.astype(jnp.float32), router_DE, precision="highest")
        probabilities_BNTE = scores_BNTE = jax.nn.softmax(logits_BNTE, axis=-1)
        if self.experts.scoring == "sigmoid":
            scores_BNTE = jax.nn.sigmoid(logits_BNTE)
            probabilities_BNTE = scores_BNTE / jnp.sum(scores_BNTE, axis=-1, keepdims=True)
        chosen_BNTE = top_k_mask(scores_BNTE, k)
        weights_BNTE = scores_BNTE * chosen_BNTE
        if self.experts.normalize_weights:
            weights_BNTE /= jnp.sum(weights_BNTE, axis=-1, keepdims=True)
        weights_BNTE *= self.experts.weight_scale
        slot_BNTE = jnp.cumsum(chosen_BNTE, axis=2) - 1  # position among the expert's tokens, in sequence order
        dispatched_BNTE = chosen_BNTE * (slot_BNTE < capacity)
        is_slot_BNTEC = slot_BNTE[..., None] == jnp.arange(capacity)[None, None, None, None, :]
        to_places_BNTEC = (is_slot_BNTEC & (dispatched_BNTE[..., None] > 0)).astype(self.dtype)
        balance_BN = E / k * jnp.sum(jnp.mean(chosen_BNTE, axis=2) * jnp.mean(probabilities_BNTE, axis=2), axis=-1)
        dropped_BN = jnp.mean(jnp.sum(chosen_BNTE - dispatched_BNTE, axis=-1), axis=2) / k
        return weights_BNTE, to_places_BNTEC, RoutingStats(jnp.mean(balance_BN, axis=1), jnp.mean(dropped_BN, axis=1))

    def _run_experts(self, x_BNECD: jax.Array) -> jax.Array:
        """Return the output of each expert for its tokens, which move to the expert and back."""
        x_BNECD = constrain(x_BNECD, "batch", "length", None, None, None)
        x_BNECD = constrain(x_BNECD, "expert_batch", "length", "experts", None, None)
        gate_BNECF = jnp.einsum("BNECD,EDF->BNECF", x_BNECD, self.gate[...].astype(self.dtype))
        up_BNECF = jnp.einsum("BNECD,EDF->BNECF", x_BNECD, self.up[...].astype(self.dtype))
        hidden_BNECF = jax.nn.silu(gate_BNECF) * up_BNECF
        y_BNECD = jnp.einsum("BNECF,EFD->BNECD", hidden_BNECF, self.down[...].astype(self.dtype))
        y_BNECD = constrain(y_BNECD, "expert_batch", "length", "experts", None, None)
        return constrain(y_BNECD, "batch", "length", None, None, None)


def top_k_mask(scores_BNTE: jax.Array, per_token: int) -> jax.Array:
    """Return 1 at each token's highest scores, the first of equal ones, and 0 elsewhere, in float32.

    It compares instead of indexing: XLA cannot partition gathers and scatters inside a partly manual shard_map.
    """
    remaining_BNTE = jax.lax.stop_gradient(scores_BNTE)
    chosen_BNTE = jnp.zeros_like(remaining_BNTE)
    for _ in range(per_token):
        best_BNTE = jax.nn.one_hot(jnp.argmax(remaining_BNTE, axis=-1), scores_BNTE.shape[-1])
        chosen_BNTE += best_BNTE
        remaining_BNTE = jnp.where(best_BNTE > 0, -1.0, remaining_BNTE)
    return chosen_BNTE
