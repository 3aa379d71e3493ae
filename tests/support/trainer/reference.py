"""The model and one step of AdamW, written again: NumPy in float64, one row and one head at a time, no library.

What the trainer computes over any mesh must equal this. Gradients come from JAX, of a forward pass that is checked
against the one here.
"""

import math
from typing import Any

import numpy as np

from trainingjob_api.network.routed_mlp import Experts
from trainingjob_api.shares import resolve_steps
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.optimizer import AdamW as AdamWSpec

type Tree = dict[str, Any]


def row_losses(spec: TrainingJobSpec, params: Tree, tokens: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of each prediction of one row of tokens."""
    return run_row(spec, params, tokens)[0]


def run_row(spec: TrainingJobSpec, params: Tree, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of each prediction of one row, and each layer's routing statistics of the row."""
    x, said = run_layers(spec, params["embedding"][tokens[:-1]], params["layers"], spec.model.num_layers)
    return predict(spec, params, params["norm"]["scale"], x, tokens[1:]), np.array(said)


def predict(spec: TrainingJobSpec, params: Tree, scale: np.ndarray, x: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of each target."""
    logits = read_logits(spec, params, scale, x)
    losses: np.ndarray = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(x)), targets]
    return losses


def read_logits(spec: TrainingJobSpec, params: Tree, scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the logits of hidden states."""
    logits: np.ndarray = norm(x, scale, spec.model.norm.epsilon) @ (
        params["embedding"].T if spec.model.tie_embeddings else params["head"]
    )
    return logits


def row_logits(spec: TrainingJobSpec, params: Tree, tokens: np.ndarray) -> np.ndarray:
    """Return the logits that predict the token after each token of one row."""
    x, _ = run_layers(spec, params["embedding"][tokens], params["layers"], spec.model.num_layers)
    return read_logits(spec, params, params["norm"]["scale"], x)


def run_layers(spec: TrainingJobSpec, x: np.ndarray, stacked: Tree, count: int) -> tuple[np.ndarray, list[Any]]:
    """Return hidden states after some layers, and the routing statistics of each."""
    said: list[Any] = []
    for number in range(count):
        x = run_layer(spec, x, pick(stacked, number), said)
    return x, said


def run_layer(spec: TrainingJobSpec, x: np.ndarray, layer: Tree, said: list[Any]) -> np.ndarray:
    model = spec.model
    h = norm(x, layer["attention_norm"]["scale"], model.norm.epsilon)
    for head in range(model.num_heads):
        shared = head // (model.num_heads // (model.num_kv_heads or model.num_heads))
        q, k = (h @ layer["attention"][name][:, one] for name, one in (("query", head), ("key", shared)))
        if model.attention.query_key_norm:
            q, k = (
                norm(x, layer["attention"][name]["scale"], model.norm.epsilon)
                for x, name in ((q, "query_norm"), (k, "key_norm"))
            )
        q, k = rotate(q, model.rope.theta), rotate(k, model.rope.theta)
        v = h @ layer["attention"]["value"][:, shared]
        x = x + attend(q, k, v) @ layer["attention"]["out"][head]
    h = norm(x, layer["mlp_norm"]["scale"], model.norm.epsilon)
    if model.experts:
        added, *routing = run_experts(model.experts, layer["mlp"], h)
        said.append(routing)
    else:
        added = run_mlp(layer["mlp"], h)
    return x + added


def run_mlp(mlp: Tree, h: np.ndarray) -> np.ndarray:
    gate = h @ mlp["gate"]
    return (gate / (1 + np.exp(-gate)) * (h @ mlp["up"])) @ mlp["down"]


def run_experts(experts: Experts, mlp: Tree, h: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Send one token after the other to its experts; return the sum, the load-balancing loss, the share dropped."""
    out = run_mlp(mlp["shared"], h) if experts.shared else np.zeros_like(h)
    length = experts.group_length or len(h)
    places = math.ceil(length * experts.per_token * experts.capacity_factor / experts.count)
    balances, num_dropped = [], 0
    for first in range(0, len(h), length):
        taken = dict.fromkeys(range(experts.count), 0)
        scores = np.exp(h[first : first + length] @ mlp["router"])
        if experts.scoring == "sigmoid":
            scores = scores / (1 + scores)
        shares_of_token = scores / scores.sum(axis=-1, keepdims=True)
        scores = scores if experts.scoring == "sigmoid" else shares_of_token
        for place, mine in enumerate(scores, start=first):
            chosen = sorted(taken, key=lambda expert, mine=mine: -mine[expert])[: experts.per_token]
            total = mine[chosen].sum() if experts.normalize_weights else 1.0
            for expert in chosen:
                taken[expert] += 1
                if taken[expert] > places:
                    num_dropped += 1
                    continue
                one = {name: mlp[name][expert] for name in ("gate", "up", "down")}
                out[place] += experts.weight_scale * mine[expert] / total * run_mlp(one, h[place])
        shares = np.array(list(taken.values())) / (length * experts.per_token)
        balances.append(experts.count * float(shares @ shares_of_token.mean(axis=0)))
    return out, float(np.mean(balances)), num_dropped / (len(h) * experts.per_token)


def pick(tree: Any, number: int) -> Any:
    """Return one layer's parameters."""
    return {k: pick(v, number) for k, v in tree.items()} if isinstance(tree, dict) else tree[number]


def norm(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * scale


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """Turn the pair (i, i + half) at position p by p / theta ** (i / half), as complex numbers."""
    half = x.shape[-1] // 2
    turns = np.exp(1j * np.outer(np.arange(len(x)), theta ** (-np.arange(half) / half)))
    turned = (x[:, :half] + 1j * x[:, half:]) * turns
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    out = np.zeros((len(q), v.shape[-1]))
    for place in range(len(q)):
        scores = np.exp(q[place] @ k[: place + 1].T / np.sqrt(q.shape[-1]))
        out[place] = scores / scores.sum() @ v[: place + 1]
    return out


def kind_of(spec: TrainingJobSpec, name: str) -> str:
    """Return the kind of a tensor by its path, as `optimizer.weightDecay.exclude` names it."""
    path = name.strip("[']").split("']['")
    kinds = {"scale": "norm", "embedding": "embedding", "router": "router"}
    is_expert = spec.model.experts and "mlp" in path and "shared" not in path and path[-1] in ("gate", "up", "down")
    return kinds.get(path[-1], "expert" if is_expert else "matrix")


class AdamW:
    """AdamW after its paper, with clipping by the global norm; state in float64, by the parameter's path."""

    def __init__(self, spec: TrainingJobSpec) -> None:
        self.spec = spec
        self.step = 0
        self.m: dict[str, np.ndarray] = {}
        self.v: dict[str, np.ndarray] = {}

    def update(self, params: dict[str, np.ndarray], grads: dict[str, np.ndarray], rate: float) -> dict[str, np.ndarray]:
        o = self.spec.optimizer
        adam = o.resolved()
        assert isinstance(adam, AdamWSpec)
        self.step += 1
        total = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        clip = min(1.0, o.clip_norm / total) if o.clip_norm else 1.0
        updated = {}
        for name, param in params.items():
            grad = grads[name] * clip
            if o.clip_value is not None:
                grad = np.clip(grad, -o.clip_value, o.clip_value)
            self.m[name] = adam.beta1 * self.m.get(name, 0.0) + (1 - adam.beta1) * grad
            self.v[name] = adam.beta2 * self.v.get(name, 0.0) + (1 - adam.beta2) * grad**2
            m_hat = self.m[name] / (1 - adam.beta1**self.step)
            v_hat = self.v[name] / (1 - adam.beta2**self.step)
            decay = (
                0.0
                if kind_of(self.spec, name) in {one.value for one in o.weight_decay.exclude}
                else o.weight_decay.rate
            )
            direction = m_hat / (np.sqrt(v_hat + adam.epsilon_root) + adam.epsilon)
            if o.clip_update_rms is not None:
                dims = tuple(range("'layers'" in name, param.ndim))
                rms = np.sqrt((direction**2).mean(axis=dims, keepdims=True))
                direction = direction / np.maximum(1.0, rms / o.clip_update_rms)
            updated[name] = param - rate * (direction + decay * param)
        return updated


def learning_rate(spec: TrainingJobSpec, step: int) -> float:
    """Return the learning rate of a step, counted from 1: up a line to the peak, then down to its final fraction."""
    last = spec.training.steps
    warmup = resolve_steps(spec.schedule.warmup, last)
    if step < warmup:
        return spec.optimizer.learning_rate * step / warmup
    done = (step - warmup) / (last - warmup)
    height = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[spec.schedule.type]
    floor = 0.0 if spec.schedule.type == "constant" else spec.schedule.final_fraction
    return spec.optimizer.learning_rate * (floor + (1 - floor) * height)


class Spikes:
    """Detection of spikes: values far above those of the newest updates, once half of a window is known."""

    def __init__(self, spec: TrainingJobSpec) -> None:
        self.spikes = spec.protection.spikes
        self.accepted: list[tuple[float, float]] = []

    def take(self, measured: tuple[float, float]) -> bool:
        """Return whether a step with this loss and gradient norm is a spike; record it if it is none."""
        if not self.spikes:
            return False
        known = np.array(self.accepted[-self.spikes.window :])
        if 2 * len(known) >= self.spikes.window and len(known) >= min(self.spikes.window, 4):
            deviation = np.maximum(known.std(axis=0), 0.001 * np.abs(known.mean(axis=0)))
            if (np.array(measured) > known.mean(axis=0) + self.spikes.sigma * deviation).any():
                return True
        self.accepted.append(measured)
        return False
