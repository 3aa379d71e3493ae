"""Each attention kernel computes what one query after the other computes in NumPy, and the same gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.attention_reference import attend_by_query
from tests.support.trainer.cases import each
from trainingjob_api.network.attention_blocks import CausalScope, count_pairs, find_block
from trainingjob_api.network.attention_kernel import KernelName
from trainingjob_trainer.hlo_analysis.flops import count_flops
from trainingjob_trainer.hlo_analysis.parser import HloProgram
from trainingjob_trainer.kernels import splash_attention
from trainingjob_trainer.kernels.attention_kernels import attention

B, L, H, G = 2, 256, 4, 2
KEY_WIDTH, VALUE_WIDTH = 24, 16

type Inputs = dict[str, jax.Array]

VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "documents": {"documents": True},
    "window": {"scope": CausalScope(window=100)},
    "window in documents": {"scope": CausalScope(window=100), "documents": True},
    "chunks": {"scope": CausalScope(chunk=96)},
    "chunks in documents, capped, sinks": {
        "scope": CausalScope(chunk=96),
        "documents": True,
        "soft_cap": 2.0,
        "sinks": True,
    },
    "chunks of documents": {"scope": CausalScope(chunk=24), "documents": True, "positions": True},
    "chunks by position": {"scope": CausalScope(chunk=24), "positions": True},
    "soft cap": {"soft_cap": 2.0},
    "sinks": {"sinks": True},
    "window and sinks": {"scope": CausalScope(window=100), "sinks": True},
    "one key head": {"groups": 1},
    "as many key heads as query heads": {"groups": H},
}
QUICK = ("documents", "chunks of documents", "window and sinks", "chunks in documents, capped, sinks")


def draw(*, groups: int = G, sinks: bool = False, **_: Any) -> Inputs:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"q": (B, L, H, KEY_WIDTH), "k": (B, L, groups, KEY_WIDTH), "v": (B, L, groups, VALUE_WIDTH)}
    shapes |= {"sinks": (H,)} if sinks else {}
    return {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=False)}


def documents_of(variant: dict[str, Any]) -> Any:
    if "documents" not in variant:
        return None
    return jnp.cumsum(jax.random.bernoulli(jax.random.key(7), 0.02, (B, L)), axis=1)


def positions_of(variant: dict[str, Any]) -> Any:
    """Return the positions in documents, also of a variant that does not separate them."""
    if "positions" not in variant:
        return None
    documents_BL, places_L = documents_of({"documents": True}), jnp.arange(L)
    is_before_BLM = documents_BL[:, :, None] == documents_BL[:, None, :]
    return places_L[None] - jnp.argmax(is_before_BLM, axis=-1)


def kernel_of(name: KernelName, variant: dict[str, Any]) -> Callable[[Inputs], jax.Array]:
    scope, documents_BL, positions_BL = (
        variant.get("scope", CausalScope()),
        documents_of(variant),
        positions_of(variant),
    )

    def run(inputs: Inputs) -> jax.Array:
        return attention(
            *(inputs[name] for name in ("q", "k", "v")),
            kernel=name,
            scope=scope,
            scale=KEY_WIDTH**-0.5,
            segments_BL=documents_BL,
            positions_BL=positions_BL,
            soft_cap=variant.get("soft_cap"),
            sinks_H=inputs.get("sinks"),
        )

    return run


def differentiate(run: Callable[[Inputs], jax.Array], inputs: Inputs) -> Any:
    """Return the gradients of a weighted sum of a function's output."""

    def total(inputs: Inputs) -> jax.Array:
        out = run(inputs).astype(jnp.float32)
        return jnp.sum(out * jax.random.normal(jax.random.key(9), out.shape))

    return jax.jit(jax.grad(total))(inputs)


@each("variant", VARIANTS, *QUICK)
def test_plain_attention_is_that_of_each_query(variant: dict[str, Any]) -> None:
    inputs = draw(**variant)

    found = kernel_of("plain", variant)(inputs)

    want = attend_by_query(
        {name: np.asarray(array, np.float64) for name, array in inputs.items()},
        variant.get("scope", CausalScope()),
        np.zeros((B, L)) if "documents" not in variant else np.asarray(documents_of(variant)),
        np.tile(np.arange(L), (B, 1)) if "positions" not in variant else np.asarray(positions_of(variant)),
        variant.get("soft_cap"),
    )
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["chunked", "splash"])
@each("variant", VARIANTS, *QUICK)
def test_a_kernel_computes_the_same_as_the_plain_one(
    variant: dict[str, Any], name: KernelName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splash_attention, "INTERPRET", True)
    inputs, plain, kernel = draw(**variant), kernel_of("plain", variant), kernel_of(name, variant)

    np.testing.assert_allclose(jax.jit(kernel)(inputs), plain(inputs), atol=1e-5)
    found, want = differentiate(kernel, inputs), differentiate(plain, inputs)
    assert found.keys() == want.keys() == inputs.keys()
    for name, gradient in want.items():
        np.testing.assert_allclose(found[name], gradient, atol=2e-5 * float(jnp.abs(gradient).max()), err_msg=name)


@pytest.mark.parametrize(("length", "scope"), [(4352, CausalScope()), (6400, CausalScope(window=2000))])
def test_splash_attention_runs_at_each_length_for_which_it_is_chosen(
    length: int, scope: CausalScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splash_attention, "INTERPRET", True)
    q, k = (jax.ShapeDtypeStruct((1, length, heads, 128), jnp.float32) for heads in (2, 1))

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attention(q, k, v, kernel="splash", scope=scope, scale=1.0))

    found = jax.eval_shape(jax.grad(total, argnums=(0, 1, 2)), q, k, k)

    assert [array.shape for array in found] == [q.shape, k.shape, k.shape]


def test_bfloat16_is_as_near_to_float32_as_in_the_plain_kernel() -> None:
    inputs = draw()
    exact = differentiate(kernel_of("plain", {}), inputs)
    rounded = {name: array.astype(jnp.bfloat16) for name, array in inputs.items()}

    def errors(name: KernelName) -> dict[str, float]:
        found = differentiate(kernel_of(name, {}), rounded)
        assert {array.dtype for array in found.values()} == {jnp.dtype(jnp.bfloat16)}
        return {
            name: float(jnp.linalg.norm(found[name].astype(jnp.float32) - want) / jnp.linalg.norm(want))
            for name, want in exact.items()
        }

    plain, chunked = errors("plain"), errors("chunked")
    assert {name: error for name, error in chunked.items() if error > max(1.1 * plain[name], 0.006)} == {}


def compile_at(length: int, scope: CausalScope) -> Any:
    """Return the compiled gradients of the chunked kernel for one sequence of a length."""
    q, k = (jax.ShapeDtypeStruct((1, length, heads, 16), jnp.float32) for heads in (4, 2))

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attention(q, k, v, kernel="chunked", scope=scope, scale=0.25))

    return jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(q, k, k).compile()


def test_memory_is_linear_in_the_length() -> None:
    short, long = (compile_at(length, CausalScope()).memory_analysis().temp_size_in_bytes for length in (4096, 8192))

    assert long < 2.1 * short
    assert long < 4 * 8192 * 8192  # float32 scores of one of four heads


@each("scope", {"causal": CausalScope(), "window": CausalScope(window=512)}, "causal", "window")
def test_hidden_blocks_cost_no_operations(scope: CausalScope) -> None:
    length, block = 2048, find_block(2048, scope)
    pairs = count_pairs(length, 1, block, scope)
    num_matmuls, heads, width = 7, 4, 16  # two forward; backward the scores again and four gradients

    flops = count_flops(HloProgram(compile_at(length, scope).as_text()))

    assert flops == num_matmuls * pairs * 2 * block * block * heads * width
    assert pairs * block * block < 0.6 * length * length
