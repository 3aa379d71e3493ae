"""The choice of experts for each token.

It compares instead of indexing: XLA cannot partition gathers and scatters inside a partly manual shard_map.

Shapes: B batch, N routing groups of a sequence, T tokens of a group, E experts, G groups of experts, M experts of one.
"""

import jax
import jax.numpy as jnp

from trainingjob_api.network.routed_mlp import ExpertGroups, Experts


def score_experts(logits_BNTE: jax.Array, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """Return the score of each expert for each token, and scores whose sum is 1."""
    if experts.scoring == "softmax":
        scores_BNTE = jax.nn.softmax(logits_BNTE, axis=-1)
        return scores_BNTE, scores_BNTE
    scores_BNTE = jax.nn.sigmoid(logits_BNTE)
    return scores_BNTE, scores_BNTE / jnp.sum(scores_BNTE, axis=-1, keepdims=True)


def choose_experts(scores_BNTE: jax.Array, bias_E: jax.Array | None, experts: Experts) -> jax.Array:
    """Return 1 at the experts of each token, and 0 elsewhere, in float32.

    The bias changes the choice alone, not the weights (Wang et al., arXiv 2408.15664).
    """
    if bias_E is not None:
        scores_BNTE = scores_BNTE + bias_E.astype(jnp.float32)[None, None, None, :]
    scores_BNTE = jax.lax.stop_gradient(scores_BNTE)
    if experts.groups:
        scores_BNTE = jnp.where(find_groups(scores_BNTE, experts.groups) > 0, scores_BNTE, -jnp.inf)
    return top_k_mask(scores_BNTE, experts.per_token)


def find_loss_lengths(weights_BL: jax.Array) -> jax.Array:
    """Return the number of tokens of each sequence up to the last one with a loss weight, int32 of one dim less.

    No loss depends on the later ones, which are mostly padding. The last dim has the order of the sequence.
    """
    ends_L = jnp.arange(1, weights_BL.shape[-1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(weights_BL != 0, ends_L, 0), axis=-1)


@jax.custom_vjp
def track_load(bias_E: jax.Array, chosen_BNTE: jax.Array) -> jax.Array:
    """Return zeros [B]. Their gradient by the bias is the load of each expert beyond an even share.

    So the load takes the way of the gradients, which are summed over layers, microbatches and devices. The sum counts a
    sequence with the cotangent of its zero.
    """
    # Computed from the choice: of a constant, `vmap` over the stages of a pipeline would add up the cotangents.
    return 0 * jnp.sum(chosen_BNTE, axis=(1, 2, 3))


def _save_choice(bias_E: jax.Array, chosen_BNTE: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return track_load(bias_E, chosen_BNTE), (bias_E, chosen_BNTE)


def _sum_load(saved: tuple[jax.Array, jax.Array], weights_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    bias_E, chosen_BNTE = saved
    excess_BNTE = chosen_BNTE - jnp.mean(chosen_BNTE, axis=-1, keepdims=True)
    load_E = jnp.sum(excess_BNTE * weights_B[:, None, None, None], axis=(0, 1, 2))
    return load_E.astype(bias_E.dtype), jnp.zeros_like(chosen_BNTE)


track_load.defvjp(_save_choice, _sum_load)


def find_groups(scores_BNTE: jax.Array, groups: ExpertGroups) -> jax.Array:
    """Return 1 at the experts of those groups that a token may use, and 0 elsewhere."""
    scores_BNTGM = scores_BNTE.reshape(*scores_BNTE.shape[:-1], groups.count, -1)
    best_BNTGM = top_k_mask(scores_BNTGM, 1 if groups.score == "best" else 2)
    chosen_BNTG = top_k_mask(jnp.sum(scores_BNTGM * best_BNTGM, axis=-1), groups.per_token)
    return jnp.broadcast_to(chosen_BNTG[..., None], scores_BNTGM.shape).reshape(scores_BNTE.shape)


def top_k_mask(scores: jax.Array, count: int) -> jax.Array:
    """Return 1 at the highest scores of the last dim, the first of equal ones, and 0 elsewhere, in float32."""
    remaining = jax.lax.stop_gradient(scores)
    chosen = jnp.zeros_like(remaining)
    for _ in range(count):
        best = jax.nn.one_hot(jnp.argmax(remaining, axis=-1), scores.shape[-1])
        chosen += best
        remaining = jnp.where(best > 0, -jnp.inf, remaining)
    return chosen
