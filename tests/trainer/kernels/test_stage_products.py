"""Products of the experts' rows in pipeline stages: those of JAX, in a form that XLA for TPUs compiles."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainingjob_trainer.kernels.grouped_matmul import run_sorted_experts
from trainingjob_trainer.kernels.quantized_ragged_dot import ShardedDims, quantized_ragged_dot
from trainingjob_trainer.kernels.stage_products import multiply_rows

SIZES = jnp.asarray([[10, 20, 0, 30], [5, 5, 40, 14]], jnp.int32)
"""Rows of four experts in two stages. The first stage has rows without an expert."""
PRODUCTS: dict[str, Callable[..., jax.Array]] = {
    "bfloat16": multiply_rows,
    "int8": lambda *arrays: quantized_ragged_dot("int8", ShardedDims(), *arrays),
    "fp8": lambda *arrays: quantized_ragged_dot("fp8", ShardedDims(), *arrays),
}


def operands(dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    rows, matrices = jax.random.normal(keys[0], (2, 64, 8), dtype), jax.random.normal(keys[1], (2, 4, 8, 16), dtype)
    return rows, matrices, SIZES


def gradients(multiply: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def loss(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
        has_expert = (jnp.arange(rows.shape[0]) < jnp.sum(sizes))[:, None]
        return jnp.sum(jnp.where(has_expert, multiply(rows, matrices, sizes), 0.0).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1))


def test_products_and_gradients_of_stages_are_those_of_jax() -> None:
    arrays = operands()
    for run in (lambda multiply: multiply, gradients):
        found, want = (jax.vmap(run(multiply))(*arrays) for multiply in (multiply_rows, jax.lax.ragged_dot))
        jax.tree.map(np.testing.assert_array_equal, found, want)


@pytest.mark.parametrize("name", PRODUCTS)
def test_tpus_get_a_product_without_a_batch_for_each_stage(name: str) -> None:
    """XLA for TPUs rejects a batched one: "Failed to create RaggedConvSpec"."""
    traced = jax.jit(jax.vmap(gradients(PRODUCTS[name]))).trace(*operands(jnp.bfloat16))

    text = traced.lower(lowering_platforms=("tpu",)).as_text()

    assert len(re.findall(r"ragged_dot", text)) >= 3 * 2
    assert "lhs_batching_dimensions" not in text


def test_the_experts_of_stages_run_these_products() -> None:
    x, weights = jnp.ones((2, 1, 8, 16), jnp.bfloat16), jnp.ones((2, 1, 8, 4))
    up, down = jnp.ones((2, 4, 16, 32), jnp.bfloat16), jnp.ones((2, 4, 32, 16), jnp.bfloat16)

    def run(x: jax.Array, weights: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return run_sorted_experts(
            x,
            weights,
            weights,
            {"up": up, "down": down},
            per_token=2,
            activate=lambda project: project("up"),
            is_input_weighted=False,
            quantized=None,
        )

    text = jax.jit(jax.vmap(run)).trace(x, weights, up, down).lower(lowering_platforms=("tpu",)).as_text()

    assert "ragged_dot" in text
    assert "lhs_batching_dimensions" not in text
