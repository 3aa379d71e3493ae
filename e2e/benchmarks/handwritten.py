"""A hand-written training loop of a small Llama, as a reference for speed: plain functions, one donated `jit`, optax.

It shares no code with the trainer except the tree of its parameters, so that both start from the same weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

type Params = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, its hyperparameters, and those of AdamW."""

    num_layers: int
    rope_theta: float
    norm_epsilon: float
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float


class TrainState(NamedTuple):
    """Parameters and optimizer state."""

    params: Params
    optimizer: Any


def rms_norm(x_BLD: jax.Array, scale_D: jax.Array, epsilon: float) -> jax.Array:
    """Return x scaled to a root mean square of 1, times a learned scale."""
    return x_BLD * jax.lax.rsqrt(jnp.mean(x_BLD**2, axis=-1, keepdims=True) + epsilon) * scale_D


def rotate(x_BLHK: jax.Array, theta: float) -> jax.Array:
    """Apply rotary position embeddings (Su et al., 2021), halves as in Llama."""
    L, K = x_BLHK.shape[1], x_BLHK.shape[-1]
    angles_LK = jnp.arange(L)[:, None] * theta ** (-jnp.arange(0, K, 2) / K)
    sin_LK, cos_LK = jnp.sin(angles_LK)[:, None], jnp.cos(angles_LK)[:, None]
    a, b = jnp.split(x_BLHK, 2, axis=-1)
    return jnp.concatenate([a * cos_LK - b * sin_LK, b * cos_LK + a * sin_LK], axis=-1)


def attend(x_BLD: jax.Array, weights: Params, theta: float) -> jax.Array:
    """Return causal grouped-query attention."""
    query = rotate(jnp.einsum("BLD,DHK->BLHK", x_BLD, weights["query"]), theta)
    key = rotate(jnp.einsum("BLD,DGK->BLGK", x_BLD, weights["key"]), theta)
    value = jnp.einsum("BLD,DGK->BLGK", x_BLD, weights["value"])
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="xla")
    return jnp.einsum("BLHK,HKD->BLD", mixed, weights["out"])


def compute_loss(params: Params, tokens_BL: jax.Array, shape: Shape) -> jax.Array:
    """Return the mean next-token cross-entropy of sequences with one token more than they predict."""

    def run_layer(x_BLD: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        normed = rms_norm(x_BLD, layer["attention_norm"]["scale"], shape.norm_epsilon)
        x_BLD = x_BLD + attend(normed, layer["attention"], shape.rope_theta)
        normed = rms_norm(x_BLD, layer["mlp_norm"]["scale"], shape.norm_epsilon)
        mlp = layer["mlp"]
        return x_BLD + (jax.nn.silu(normed @ mlp["gate"]) * (normed @ mlp["up"])) @ mlp["down"], None

    x_BLD, _ = jax.lax.scan(run_layer, params["embedding"][tokens_BL[:, :-1]], params["layers"])
    logits_BLV = rms_norm(x_BLD, params["norm"]["scale"], shape.norm_epsilon) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits_BLV, tokens_BL[:, 1:]).mean()


def make_optimizer(shape: Shape) -> optax.GradientTransformation:
    """Return AdamW with clipping, without decay of the norms' scales."""
    return optax.chain(
        optax.clip_by_global_norm(shape.clip_norm),
        optax.adamw(
            shape.learning_rate,
            b1=shape.beta1,
            b2=shape.beta2,
            eps=shape.epsilon,
            weight_decay=shape.weight_decay,
            mask=lambda params: jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "scale", params),
        ),
    )


def make_step(shape: Shape) -> Callable[[TrainState, jax.Array], tuple[TrainState, jax.Array]]:
    """Return a compiled training step that donates its state."""
    optimizer = make_optimizer(shape)

    def step(state: TrainState, tokens_BL: jax.Array) -> tuple[TrainState, jax.Array]:
        loss, gradients = jax.value_and_grad(compute_loss)(state.params, tokens_BL, shape)
        updates, moments = optimizer.update(gradients, state.optimizer, state.params)
        return TrainState(optax.apply_updates(state.params, updates), moments), loss

    return jax.jit(step, donate_argnums=0)


def start(params: Params, shape: Shape) -> TrainState:
    """Return the state before the first step."""
    return TrainState(params, make_optimizer(shape).init(params))
