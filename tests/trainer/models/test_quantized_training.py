"""Training with quantized matmuls: near float32, alike on every mesh, and without the excluded matrices."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2e.benchmarks.gradients import ALL_EXPERTS, BATCH, Gradients, draw_tokens, errors, measure
from tests.support.trainer.cases import each
from tests.support.trainer.meshes import MODELS, describe_mesh, plan_mesh
from tests.support.trainer.training import ONE, Run, losses, spec_with
from tests.trainer.models.test_gradients import walk
from trainingjob_api.base import Axis
from trainingjob_api.decoding import DecodingShape
from trainingjob_trainer.models.decoder import SplitModel, split_model_of
from trainingjob_trainer.models.decoding_cache import decoding_network, empty_cache

TYPES = ("int8", "fp8")
NUM_STEPS = 20
NEAR_FLOAT32 = {"int8": 0.05, "fp8": 0.08}
"""Most difference of the mean loss of 20 steps."""
NEAR_GRADIENTS = {"int8": 5e-3, "fp8": 5e-4}
"""Most distance of a gradient on a mesh, relative to its norm. A value near the middle of two others may be rounded to
the other one, which is a larger part of a value of int8."""
LENGTH = 32

type Case = tuple[str, tuple[Axis, ...]]

MESHES: tuple[Case, ...] = (
    ("dense", ("data", "fsdp", "context")),
    ("dense", ("stage", "fsdp", "tensor")),
    ("dropless experts", ("fsdp", "expert", "tensor")),
    ("dropless experts", ("stage", "expert")),
    ("latent", ("expert", "context", "tensor")),
)
CASES = {" ".join((model, *axes)): (model, axes) for model, axes in MESHES}


def describe(kind: str, **changes: Any) -> Any:
    return spec_with(**{"precision__quantization": {"type": kind}, "training__steps": NUM_STEPS} | changes)


@cache
def train(model: str, kind: str | None) -> list[float]:
    changes: dict[str, Any] = {"precision__quantization": {"type": kind}} if kind else {}
    spec = describe_mesh(model, (), **changes)
    return [float(metrics.loss) for metrics in Run(spec, ONE).train(NUM_STEPS)]


@pytest.mark.thorough
@each("model", {name: name for name in MODELS}, "dense")
@pytest.mark.parametrize("kind", TYPES)
def test_the_loss_stays_near_float32_and_goes_down(model: str, kind: str) -> None:
    want, found = train(model, None), train(model, kind)

    assert found != want
    assert np.mean(found) == pytest.approx(np.mean(want), abs=NEAR_FLOAT32[kind])
    assert np.mean(found[-4:]) < np.mean(found[:4]) - 0.05


@cache
def differentiate(model: str, axes: tuple[Axis, ...], kind: str, batch: int | None = None) -> Gradients:
    """Return the gradients of a step. Every expert has every token: rounding alone would route tokens differently."""
    section = MODELS[model]
    if "experts" in section:
        section = section | {"experts": section["experts"] | ALL_EXPERTS}
    spec = describe_mesh(
        model,
        axes,
        model=section,
        precision__quantization={"type": kind},
        optimizer__adamw={"beta1": 0},
        optimizer__clipNorm=0,
        training__globalBatchSize=BATCH,
        training__sequenceLength=LENGTH,
        training__maxPerDeviceBatch=batch,
    )
    layout = plan_mesh(spec).layout
    assert layout
    assert layout.accumulation == (BATCH // batch if batch else 1)
    return measure(spec, layout, draw_tokens(LENGTH))


@pytest.mark.thorough
@each("case", CASES, "dense data fsdp context", "dropless experts fsdp expert tensor")
@pytest.mark.parametrize("kind", TYPES)
def test_gradients_do_not_depend_on_the_mesh(case: Case, kind: str) -> None:
    model, axes = case
    alone, found = (differentiate(model, where, kind) for where in ((), axes))
    alone = {name: grad for name, grad in alone.items() if grad.any()}

    assert max(errors(found, alone).values()) < NEAR_GRADIENTS[kind]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
def test_gradients_do_not_depend_on_accumulation(kind: str) -> None:
    alone, found = (differentiate("dense", (), kind, batch) for batch in (None, 2))

    assert max(errors(found, alone).values()) < NEAR_GRADIENTS[kind]


def trace(**changes: Any) -> list[tuple[str, str]]:
    """Return the formats of the operands of each narrow matmul in a step's program."""
    run = Run(spec_with(**changes), ONE)
    program = jax.make_jaxpr(run.steps.train)(run.state, run.batch(1), run.controls()).jaxpr
    dots = (line for line in walk(program) if line.primitive.name in ("dot_general", "ragged_dot_general"))
    formats = [tuple(operand.aval.dtype.name for operand in line.invars[:2]) for line in dots]
    return sorted(one for one in formats if jnp.dtype(one[0]).itemsize == 1)


@pytest.mark.thorough
def test_the_matmuls_of_all_matrices_of_a_layer_are_quantized() -> None:
    """The seven matrices of a layer are in one loop, forward and backward."""
    assert trace(precision__quantization={"type": "int8"}) == [("int8", "int8")] * 14
    assert trace(precision__quantization={"type": "fp8"}) == [
        *[("float8_e4m3fn", "float8_e4m3fn")] * 7,
        *[("float8_e4m3fn", "float8_e5m2")] * 7,
        *[("float8_e5m2", "float8_e4m3fn")] * 7,
    ]


def test_excluded_matrices_are_not_quantized() -> None:
    excluded = {"type": "int8", "exclude": ["layers.attention.*", "*.down"]}

    assert trace(precision__quantization=excluded) == [("int8", "int8")] * 4


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["dense", "dropless experts"])
def test_a_job_that_excludes_all_matrices_computes_what_it_computes_without_quantization(model: str) -> None:
    nothing = {"type": "fp8", "exclude": ["*"]}
    plain, excluded = (
        Run(describe_mesh(model, (), precision__quantization=quantization), ONE) for quantization in (None, nothing)
    )

    for one, other in zip(plain.train(2), excluded.train(2), strict=True):
        assert float(one.loss) == float(other.loss)
    for one, other in zip(*(jax.tree.leaves(run.state.params) for run in (plain, excluded)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
def test_layers_that_are_computed_again_have_the_same_values(kind: str) -> None:
    saved, again = (losses(describe(kind, memory__remat=remat), ONE) for remat in ("none", "full"))

    assert again == pytest.approx(saved, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
def test_adapters_train_beside_quantized_matmuls_of_their_base(kind: str) -> None:
    lora = {"rank": 4, "alpha": 8.0, "targets": ["*.attention.*", "*.down"]}
    run = Run(describe(kind, lora=lora, optimizer__learningRate=0.03), ONE)
    base = np.asarray(run.state.params["layers"]["mlp"]["down"])
    found = [float(metrics.loss) for metrics in run.train(NUM_STEPS)]

    assert found[0] == losses(describe(kind), ONE)[0]  # at first, adapters add zeros
    assert np.mean(found[-4:]) < np.mean(found[:4]) - 0.1
    np.testing.assert_array_equal(run.state.params["layers"]["mlp"]["down"], base)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
def test_text_is_generated_with_the_matmuls_of_training(kind: str) -> None:
    spec = describe(kind)
    run, model = Run(spec, ONE), split_model_of(spec)
    tokens = run.batch(1).tokens[0, 0, :2]
    whole = model.logits(run.state.params, hidden_states(model, run.state.params, tokens))

    room = SplitModel(decoding_network(model.network), model.precision, model.memory)
    cache = empty_cache(room.network, DecodingShape(*tokens.shape), jnp.float32)
    hidden, _ = room.decode(run.state.params, tokens, cache, jnp.int32(0))

    np.testing.assert_allclose(room.logits(run.state.params, hidden), whole, atol=1e-4)


def hidden_states(model: SplitModel, params: Any, tokens: jax.Array) -> jax.Array:
    """Return the hidden states after the last layer."""
    states: jax.Array = model.run_layers(params, model.embed(params, tokens, None, None, None)).x
    return states
