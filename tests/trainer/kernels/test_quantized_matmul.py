"""Quantized matmuls, forward and backward, in relation to NumPy."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.support.trainer.tiny import make_layout
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.kernels.quantized_matmul import quantize_values, quantized_einsum
from trainingjob_trainer.kernels.quantized_ragged_dot import ShardedDims, quantized_ragged_dot
from trainingjob_trainer.parallel.mesh import build_mesh

NUMPY = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}
FORMATS = {"int8": ("int8", "int8", None), "fp8": ("e4m3", "e5m2", "e4m3")}
"""Of each type: the format of values, that of gradients, and that of values in the gradient of a matrix."""


def round_values(array: np.ndarray, dtype: str | None, axis: int) -> np.ndarray:
    """Return the values that a narrow format holds, scaled by the largest one along an axis."""
    if dtype is None:
        return array
    largest = np.max(np.abs(array), axis=axis, keepdims=True)
    if dtype == "int8":
        scale = np.where(largest > 0, largest / 127, 1)
        return np.round(array / scale) * scale
    kind, most = NUMPY[dtype]
    scale = 2.0 ** np.where(largest > 0, np.floor(np.log2(largest / most, where=largest > 0, out=0 * largest)) + 1, 0)
    return (array / scale).astype(kind).astype(np.float64) * scale


def multiply(x: np.ndarray, matrix: np.ndarray, grads: np.ndarray, kind: str) -> tuple[np.ndarray, ...]:
    """Return the product [L, F] and the gradients of both operands, from [L, D], [D, F] and [L, F]."""
    values, gradients, in_sums = FORMATS[kind]
    product = round_values(x, values, 1) @ round_values(matrix, values, 0)
    dx = round_values(grads, gradients, 1) @ round_values(matrix, values, 1).T
    dmatrix = round_values(x, in_sums, 0).T @ round_values(grads, in_sums and gradients, 0)
    return product, dx, dmatrix


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 numbers whose rows and columns have very different sizes, one of them only zeros."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4, size=shape[-1])
    numbers[..., 1, :] = 0
    numbers[..., 2] = 0
    return numbers.astype(np.float32).astype(np.float64)


def relative(found: Any, want: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found, np.float64) - want) / np.linalg.norm(want))


@pytest.mark.parametrize("kind", FORMATS)
def test_products_and_gradients_are_those_of_numpy(kind: str) -> None:
    x, matrix, grads = draw(24, 64), draw(64, 32, seed=1), draw(24, 32, seed=2)
    product, pull_back = jax.vjp(
        lambda x, matrix: quantized_einsum("LD,DF->LF", kind, x, matrix), *map(jnp.float32, (x, matrix))
    )

    for found, want in zip((product, *pull_back(jnp.float32(grads))), multiply(x, matrix, grads, kind), strict=True):
        assert relative(found, want) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("equation", "x_shape", "matrix_shape"),
    [
        ("BLD,DHK->BLHK", (2, 5, 16), (16, 2, 8)),
        ("BLHK,HKD->BLD", (2, 5, 2, 8), (2, 8, 16)),
        ("BNECD,EDF->BNECF", (2, 1, 3, 4, 16), (3, 16, 8)),
    ],
)
def test_products_with_more_dims_are_those_of_their_matrices(
    kind: Any, equation: str, x_shape: tuple[int, ...], matrix_shape: tuple[int, ...]
) -> None:
    x, matrix = jnp.float32(draw(*x_shape)), jnp.float32(draw(*matrix_shape, seed=1))
    found, pull_back = jax.vjp(lambda x, matrix: quantized_einsum(equation, kind, x, matrix), x, matrix)
    grads = jnp.float32(draw(*found.shape, seed=2))

    if "E" in equation:
        want = [flat(kind, x[:, :, e], matrix[e], grads[:, :, e], 1) for e in range(3)]
        dims = (2, 2, 0)
        wanted = [np.stack(arrays, axis=dim) for arrays, dim in zip(zip(*want, strict=True), dims, strict=True)]
    else:
        wanted = list(flat(kind, x, matrix, grads, 2 if x.ndim == 4 else 1))
    for array, want_array in zip((found, *pull_back(grads)), wanted, strict=True):
        assert relative(array, want_array.reshape(array.shape)) < 1e-6


def flat(kind: str, x: Any, matrix: Any, grads: Any, summed: int) -> tuple[np.ndarray, ...]:
    """Return product and gradients of one matrix, whose first dims are summed."""
    inputs, outputs = int(np.prod(matrix.shape[:summed])), int(np.prod(matrix.shape[summed:]))
    arrays = (np.asarray(array, np.float64) for array in (x, matrix, grads))
    x, matrix, grads = arrays
    product, dx, dmatrix = multiply(
        x.reshape(-1, inputs), matrix.reshape(inputs, outputs), grads.reshape(-1, outputs), kind
    )
    return product.reshape(grads.shape), dx.reshape(x.shape), dmatrix.reshape(matrix.shape)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("sizes", [(3, 0, 9), (4, 5, 7)], ids=["rows without an expert", "all rows"])
def test_rows_of_experts_are_products_with_their_matrices(kind: Any, sizes: tuple[int, ...]) -> None:
    x, matrices, grads = draw(16, 64), draw(3, 64, 32, seed=1), draw(16, 32, seed=2)
    own = sum(sizes)
    x[own:], grads[own:] = 0, 0
    garbage = x.copy()
    garbage[own:] = np.nan  # what a kernel may leave in rows without an expert
    found, pull_back = jax.vjp(
        lambda x, matrices: quantized_ragged_dot(kind, ShardedDims(), x, matrices, jnp.int32(sizes)),
        *map(jnp.float32, (garbage, matrices)),
    )
    _, gradients, in_sums = FORMATS[kind]
    runs = np.split(np.arange(own), np.cumsum(sizes)[:-1])
    by_column = round_values(x, in_sums, 0), round_values(grads, in_sums and gradients, 0)

    dx, dmatrices = pull_back(jnp.float32(grads))
    for expert, rows in enumerate(runs):
        if not len(rows):
            assert not np.any(dmatrices[expert])
            continue
        product, drows, _ = multiply(x[rows], matrices[expert], grads[rows], kind)
        assert relative(found[rows], product) < 1e-6
        assert relative(dx[rows], drows) < 1e-6
        if in_sums:
            assert relative(dmatrices[expert], by_column[0][rows].T @ by_column[1][rows]) < 1e-6


@pytest.mark.parametrize(("kind", "precision"), [("int8", "DEFAULT"), ("fp8", "HIGHEST")])
def test_gradients_of_expert_rows_have_a_precision_only_in_float8(kind: Any, precision: str) -> None:
    """The compiler of TPU v5p rejects a kernel that multiplies integers with a precision."""

    def total(rows: jax.Array, matrices: jax.Array) -> jax.Array:
        return jnp.sum(quantized_ragged_dot(kind, ShardedDims(), rows, matrices, jnp.int32([4, 4])))

    traced = jax.jit(jax.grad(total)).trace(jnp.ones((8, 16)), jnp.ones((2, 16, 16)))
    lowered = traced.lower(lowering_platforms=("tpu",)).as_text()

    assert re.findall(r"ragged_dot.*precision_config = \[#chlo<precision (\w+)>", lowered) == [precision]


def test_products_in_bfloat16_are_rounded_once() -> None:
    """The scales of fp8 are powers of two. Those of int8 multiply exact sums in float32."""
    x, matrix = (jnp.bfloat16(draw(*shape, seed=seed)) for seed, shape in enumerate([(16, 4096), (4096, 32)]))
    for kind in FORMATS:
        found = quantized_einsum("LD,DF->LF", kind, x, matrix)
        want = multiply(np.float64(x), np.float64(matrix), np.zeros((16, 32)), kind)[0]

        assert found.dtype == jnp.bfloat16
        assert relative(found, want) < 2**-8


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_value_that_is_not_finite_is_noticed(kind: Any, bad: float) -> None:
    x, matrix = jnp.ones((3, 4)).at[1, 2].set(bad), jnp.ones((4, 5))
    product, pull_back = jax.vjp(lambda x, matrix: quantized_einsum("LD,DF->LF", kind, x, matrix), x, matrix)
    dx, dmatrix = pull_back(jnp.ones((3, 5)).at[0, 1].set(bad))

    assert np.isfinite(np.asarray(product)).all(axis=1).tolist() == [True, False, True]
    assert not np.isfinite(np.asarray(dx[0])).any()
    assert not np.isfinite(np.asarray(dmatrix)).all()


def test_fp8_rounds_a_value_alike_beside_others() -> None:
    """Its scale is a power of two, so that the split of a batch does not change gradients."""
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    alone, beside = (
        quantize_values(jnp.float32(np.concatenate([x, more])), jnp.float8_e5m2, [0]) for more in (x[:1], 37 * x[:1])
    )

    rounded = [np.float32(one.qvalue[:8]) * np.asarray(one.scale) for one in (alone, beside)]
    np.testing.assert_array_equal(*rounded)


@pytest.mark.parametrize("kind", FORMATS)
def test_devices_add_their_scaled_parts_of_a_sum(kind: Any) -> None:
    """Along `tensor`, int32 values would take twice the bytes of bfloat16, and XLA would add those of each matrix."""
    x, matrix = jnp.float32(draw(16, 64)), jnp.float32(draw(64, 32, seed=1))
    mesh = build_mesh(jax.devices()[:2], make_layout(ici=AxisDegrees(tensor=2)))
    places = [NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "tensor"), ("tensor",), ())]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        multiply_all = jax.jit(
            lambda x, matrix: quantized_einsum("LF,FD->LD", kind, x, matrix),
            in_shardings=places[:2],
            out_shardings=places[2],
        )
        compiled = multiply_all.lower(x, matrix).compile()
    sums = re.findall(r"= (\w+)\[([\d,]+)\]\S* all-reduce\(", compiled.as_text())

    assert ("f32", "16,32") in sums
    assert "s32" not in dict(sums)
    whole = quantized_einsum("LF,FD->LD", kind, x, matrix)
    assert relative(compiled(x, matrix), np.asarray(whole, np.float64)) < 1e-6
