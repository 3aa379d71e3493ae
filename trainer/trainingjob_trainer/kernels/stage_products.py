"""Products of sorted rows with the matrices of their experts, one for each pipeline stage.

`jax.vmap` over stages gives `ragged_dot` a batch dim, and XLA for TPUs rejects such a program. These products have a
batching rule of their kind instead: a product for each stage. A device has one stage, so it runs one product.

Shapes: E experts, R rows, I inputs, O outputs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

TO_INPUTS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)
"""A product of each row and the transposed matrix of its expert: [R, O] and [E, I, O] to [R, I]."""
ROWS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)
"""A sum over the rows of each expert: [R, I] and [R, O] to [E, I, O]."""


def run_for_each_stage(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that `jax.vmap` calls once for each stage. It has no derivative."""
    run_stage: Any = jax.custom_batching.custom_vmap(function)

    @run_stage.def_vmap  # type: ignore[untyped-decorator]  # JAX states no type
    def run_stages(num_stages: int, is_batched: list[Any], *arguments: Any) -> tuple[Any, Any]:
        def select(stage: int) -> list[Any]:
            selected: list[Any] = jax.tree.map(
                lambda batched, x: x[stage] if batched else x, is_batched, list(arguments)
            )
            return selected

        results = [run_stage(*select(stage)) for stage in range(num_stages)]
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *results)
        return stacked, jax.tree.map(lambda _: True, stacked)

    run: Callable[..., Any] = run_stage
    return run


@jax.custom_vjp
def multiply_rows(rows_RI: jax.Array, matrices_EIO: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """Return the product of each row and the matrix of its expert. The rows of an expert follow those of the last.

    Rows beyond the last expert may have any result.
    """
    product: jax.Array = run_for_each_stage(jax.lax.ragged_dot)(rows_RI, matrices_EIO, sizes_E)
    return product


type Saved = tuple[jax.Array, jax.Array, jax.Array]


def _save_operands(rows_RI: jax.Array, matrices_EIO: jax.Array, sizes_E: jax.Array) -> tuple[jax.Array, Saved]:
    return multiply_rows(rows_RI, matrices_EIO, sizes_E), (rows_RI, matrices_EIO, sizes_E)


def _pull_back(saved: Saved, grads_RO: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    """Return the gradients of the rows and of the matrices."""
    rows_RI, matrices_EIO, sizes_E = saved
    return multiply_general(grads_RO, matrices_EIO, sizes_E, TO_INPUTS), sum_rows(rows_RI, grads_RO, sizes_E), None


multiply_rows.defvjp(_save_operands, _pull_back)


def sum_rows(rows_RI: jax.Array, grads_RO: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """Return the gradients of matrices [E, I, O]."""
    return multiply_general(rows_RI, grads_RO, sizes_E, ROWS)


def multiply_general(
    left: jax.Array, right: jax.Array, sizes_E: jax.Array, dims: jax.lax.RaggedDotDimensionNumbers
) -> jax.Array:
    """Return `jax.lax.ragged_dot_general`, one for each stage."""
    multiply = run_for_each_stage(partial(jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=dims))
    product: jax.Array = multiply(left, right, sizes_E)
    return product
