"""LoRA written again in NumPy: merged matrices, and the gradients of adapters from those of the matrices."""

from typing import Any

import numpy as np

type Tree = dict[str, Any]
A, B, SCALE = "_lora_a", "_lora_b", "_scale"
NUM_INPUTS = {"out": 2}
"""Dims of the input of a matrix of one layer, by its name; the others have one."""


def merge(tree: Tree, factor: float) -> Tree:
    """Return the parameters of a plain model: int8 matrices as numbers, and adapters added to their matrices."""
    merged: Tree = {}
    for name, node in tree.items():
        if isinstance(node, dict):
            merged[name] = merge(node, factor)
        elif not name.endswith((A, B, SCALE)) or name == "scale":
            merged[name] = _matrix(tree, name) + (factor * product(tree, name) if f"{name}{A}" in tree else 0.0)
    return merged


def product(tree: Tree, name: str) -> np.ndarray:
    """Return A B of a stacked matrix, in its shape."""
    a, b = _flat(tree, name)
    return np.einsum("nir,nro->nio", a, b).reshape(tree[name].shape)


def adapter_gradients(tree: Tree, name: str, gradient: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of A and B of a stacked matrix from the gradient of the matrix."""
    a, b = _flat(tree, name)
    grad_nio = np.asarray(gradient, np.float64).reshape(a.shape[0], a.shape[1], b.shape[2])
    grad_a, grad_b = np.einsum("nio,nro->nir", grad_nio, b), np.einsum("nir,nio->nro", a, grad_nio)
    return factor * grad_a.reshape(tree[f"{name}{A}"].shape), factor * grad_b.reshape(tree[f"{name}{B}"].shape)


def _flat(tree: Tree, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return A [N, in, rank] and B [N, rank, out] of N layers."""
    a, b = (np.asarray(tree[f"{name}{ending}"], np.float64) for ending in (A, B))
    rank = a.shape[-1]
    return a.reshape(a.shape[0], -1, rank), b.reshape(b.shape[0], rank, -1)


def _matrix(tree: Tree, name: str) -> np.ndarray:
    matrix = np.asarray(tree[name], np.float64)
    if f"{name}{SCALE}" not in tree:
        return matrix
    inputs = NUM_INPUTS.get(name, 1)
    scale = np.asarray(tree[f"{name}{SCALE}"], np.float64)
    is_of_experts = name in ("gate", "up", "down") and matrix.ndim == 4
    return matrix * np.expand_dims(scale, 2 if is_of_experts else tuple(range(1, 1 + inputs)))
