"""The trained loss of a batch, written again in plain JAX on one device, so that it has gradients.

No code of the trainer is used. Numbers of the spec are arguments of the compiled function, so that jobs of one shape
share it; what each number means is checked against the NumPy reference beside it.

Shapes: L length, D model width, T tokens of a group, E experts.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainingjob_api.network.norm import Norm
from trainingjob_api.network.rope import Rope
from trainingjob_api.network.routed_mlp import Balance, Experts
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.model import Init, Model

type Tree = dict[str, Any]
type Numbers = dict[str, float]
NEUTRAL = {"rope": Rope(theta=1.0), "norm": Norm(epsilon=0.1), "init": Init(std=1.0)}
NEUTRAL_OF_EXPERTS = {"weight_scale": 1.0, "balance": Balance(loss_weight=0.0)}


def find_gradients(spec: TrainingJobSpec, params: Tree, tokens: np.ndarray) -> tuple[float, Tree]:
    """Return the mean cross-entropy of rows of tokens, and the gradient of the trained loss' mean."""
    model, experts = spec.model, spec.model.experts
    numbers = {"rope_theta": model.rope.theta, "norm_epsilon": model.norm.epsilon}
    if experts:
        numbers |= {"weight_scale": experts.weight_scale, "load_balance_weight": experts.balance.loss_weight}
        experts = experts.model_copy(update=NEUTRAL_OF_EXPERTS)
    shape = model.model_copy(update={**NEUTRAL, "experts": experts})
    (_, entropy), grads = _compile(shape)(params, tokens, numbers)
    return float(entropy), grads


@cache
def _compile(model: Model) -> Callable[[Tree, np.ndarray, Numbers], tuple[tuple[jax.Array, jax.Array], Tree]]:
    def mean(params: Tree, tokens: jax.Array, numbers: Numbers) -> tuple[jax.Array, jax.Array]:
        entropies, balances = jax.vmap(lambda row: _run_row(model, numbers, params, row))(tokens)
        entropy = jnp.mean(entropies)
        weight = numbers.get("load_balance_weight", 0.0)
        return entropy + weight * jnp.mean(balances), entropy

    return jax.jit(jax.value_and_grad(mean, has_aux=True))


def _run_row(model: Model, numbers: Numbers, params: Tree, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cross-entropy of each prediction of a row, and the sum of its layers' load-balancing losses."""
    x_LD = params["embedding"][tokens[:-1]]
    balance = jnp.zeros(())
    for number in range(model.num_layers):
        layer = jax.tree.map(lambda leaf, number=number: leaf[number], params["layers"])
        x_LD = x_LD + _attend(model, numbers, layer["attention"], _norm(x_LD, layer["attention_norm"], numbers))
        h_LD = _norm(x_LD, layer["mlp_norm"], numbers)
        if model.experts:
            added_LD, more = _run_experts(model.experts, numbers, layer["mlp"], h_LD)
            balance = balance + more
        else:
            added_LD = _run_mlp(layer["mlp"], h_LD)
        x_LD = x_LD + added_LD
    logits = _norm(x_LD, params["norm"], numbers) @ params["head"]
    scores = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return -jnp.take_along_axis(scores, tokens[1:, None], axis=-1)[:, 0], balance


def _norm(x_LD: jax.Array, norm: Tree, numbers: Numbers) -> jax.Array:
    square_L1 = jnp.mean(x_LD * x_LD, axis=-1, keepdims=True)
    return norm["scale"][None, :] * x_LD / jnp.sqrt(square_L1 + numbers["norm_epsilon"])


def _attend(model: Model, numbers: Numbers, attention: Tree, h_LD: jax.Array) -> jax.Array:
    L = h_LD.shape[0]
    is_later_LL = jnp.triu(jnp.ones((L, L), bool), 1)
    added = []
    for head in range(model.num_heads):
        shared = head // (model.num_heads // (model.num_kv_heads or model.num_heads))
        q, k = h_LD @ attention["query"][:, head], h_LD @ attention["key"][:, shared]
        if model.attention.query_key_norm:
            q, k = _norm(q, attention["query_norm"], numbers), _norm(k, attention["key_norm"], numbers)
        q, k = _rotate(q, numbers["rope_theta"]), _rotate(k, numbers["rope_theta"])
        weights_LL = jax.nn.softmax(jnp.where(is_later_LL, -1e30, q @ k.T / math.sqrt(q.shape[-1])), axis=-1)
        added.append(weights_LL @ (h_LD @ attention["value"][:, shared]) @ attention["out"][head])
    return sum(added[1:], added[0])


def _rotate(x: jax.Array, theta: float) -> jax.Array:
    """Turn the pair (i, i + half) at position p by p / theta ** (i / half), as complex numbers."""
    half = x.shape[-1] // 2
    turns = jnp.arange(len(x))[:, None] * jnp.exp(-jnp.log(theta) * jnp.arange(half) / half)[None, :]
    turned = jax.lax.complex(x[:, :half], x[:, half:]) * jnp.exp(1j * turns)
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def _run_mlp(mlp: Tree, h: jax.Array) -> jax.Array:
    gate = h @ mlp["gate"]
    return (gate * jax.nn.sigmoid(gate) * (h @ mlp["up"])) @ mlp["down"]


def _run_experts(experts: Experts, numbers: Numbers, mlp: Tree, h_LD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run every expert on every token; return the sum of the chosen ones with capacity, and the balance loss."""
    E, k = experts.count, experts.per_token
    length = experts.group_length or h_LD.shape[0]
    places = math.ceil(length * k * experts.capacity_factor / E)
    added, balances = [], []
    for first in range(0, h_LD.shape[0], length):
        h_TD = h_LD[first : first + length]
        shares_TE = jax.nn.softmax(h_TD @ mlp["router"], axis=-1)
        rank_TE = jnp.argsort(jnp.argsort(-shares_TE, axis=-1), axis=-1)
        chosen_TE = (rank_TE < k).astype(jnp.float32)
        has_room_TE = jnp.cumsum(chosen_TE, axis=0) <= places
        weights_TE = numbers["weight_scale"] * shares_TE * chosen_TE * has_room_TE
        y_TD = _run_mlp(mlp["shared"], h_TD) if experts.shared else jnp.zeros_like(h_TD)
        for expert in range(E):
            one = {name: mlp[name][expert] for name in ("gate", "up", "down")}
            y_TD = y_TD + weights_TE[:, expert, None] * _run_mlp(one, h_TD)
        added.append(y_TD)
        balances.append(E / k * jnp.mean(chosen_TE, axis=0) @ jnp.mean(shares_TE, axis=0))
    return jnp.concatenate(added), jnp.mean(jnp.stack(balances))
