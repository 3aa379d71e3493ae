"""A pipeline whose stages alternate between both passes: the loss and gradients of one device, in less memory."""

from collections.abc import Callable, Sequence
from functools import cache, partialmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.support.trainer.cases import each
from tests.support.trainer.kernels import run_attention
from tests.support.trainer.meshes import DROPLESS, MODELS, SIZE
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, flat, losses
from tests.trainer.models.test_kernels import describe, differentiate, errors, plain, trace
from tests.trainer.test_step import LAYOUTS as STEP_LAYOUTS
from trainingjob_api.pipeline import PipelineSchedule, ScheduleName
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.flops import count_flops
from trainingjob_trainer.hlo_analysis.parser import HloProgram
from trainingjob_trainer.models.alternating_pipeline import PartParams, PipelineParts, differentiate_pipeline
from trainingjob_trainer.models.attention import GroupedQueries
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.models.last_stage import LastStage
from trainingjob_trainer.models.layer_taps import tap_layer
from trainingjob_trainer.models.layers import HiddenStates, add_taps
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Batch
from trainingjob_trainer.step import StepPrograms

DEEP = {"model__numLayers": 4}
ALTERNATING = {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}}
SHARDED = "2 stages, fsdp 2, tensor 2, 4 microbatches"
SLICES = "data 2 over slices, 2 stages, context 2, accumulation 2"
EXPERT = "2 stages, fsdp 2, expert 2"
TWO_STAGES = make_layout(ici=AxisDegrees(stage=2), rows_per_shard=1, microbatches=8)
LAYOUTS: dict[str, Layout] = {
    "2 stages, 8 microbatches": TWO_STAGES,
    "4 stages, fsdp 2": make_layout(
        devices_per_host=8, ici=AxisDegrees(stage=4, fsdp=2), rows_per_shard=1, microbatches=4
    ),
    "data 2, 4 stages": make_layout(
        devices_per_host=8, ici=AxisDegrees(data=2, stage=4), rows_per_shard=1, microbatches=4
    ),
    "4 stages, tensor 2": make_layout(
        devices_per_host=8, ici=AxisDegrees(stage=4, tensor=2), rows_per_shard=2, microbatches=4
    ),
    EXPERT: make_layout(
        devices_per_host=8, ici=AxisDegrees(stage=2, fsdp=2, expert=2), rows_per_shard=1, microbatches=2
    ),
    **{name: STEP_LAYOUTS[name] for name in (SHARDED, SLICES)},
}
EXPERTS = {"count": 4, "perToken": 2, "scoring": "sigmoid", "balance": {"lossWeight": 0.01}}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "tied, windows, soft caps": ({"model": MODELS["windows"] | {"numLayers": 8}}, SLICES),
    "tied, odd vocabulary": ({"model": SIZE | {"tieEmbeddings": True, "vocabSize": 259}}, SHARDED),
    "experts, balance loss": ({"model": SIZE | {"experts": EXPERTS}}, SHARDED),
    "dropless experts": ({"model": SIZE | {"experts": DROPLESS}}, EXPERT),
    "dropless experts over slices": ({"model": SIZE | {"experts": DROPLESS}}, SLICES),
    "learned positions, dropout": (
        {
            "model": SIZE | {"positions": "learned", "maxPositions": 16},
            "model__dropout": {"residual": 0.2, "embedding": 0.1},
        },
        SHARDED,
    ),
    "layers computed again, a ring": ({"memory__remat": "full", "parallelism__context": {"exchange": "ring"}}, SLICES),
    "logits in chunks": ({"memory__lossChunks": 3, "objective__zLoss": 0.01}, SHARDED),
    "logits in chunks, tied": ({"memory__lossChunks": 3, "model__tieEmbeddings": True}, SLICES),
    "z-loss": ({"objective__zLoss": 0.01}, SLICES),
    "further tokens, dropout, balance loss": (
        {
            "model": SIZE | {"experts": EXPERTS, "positions": "learned", "maxPositions": 16},
            "model__dropout": {"residual": 0.2, "embedding": 0.1},
            "model__multiTokenPrediction": {"depth": 2},
        },
        SHARDED,
    ),
    "further tokens, tied, a ring, chunks": (
        {
            "model__multiTokenPrediction": {"depth": 1},
            "model__tieEmbeddings": True,
            "parallelism__context": {"exchange": "ring"},
            "memory__lossChunks": 3,
        },
        SLICES,
    ),
    "stream over tensor": ({"parallelism__shardStreamOverTensor": True}, SHARDED),
}
CURVES: dict[str, dict[str, Any]] = {
    "isolated documents": {"data__packing": {"type": "bestFit"}},
    "adapters": {"lora": {"rank": 2, "alpha": 4.0, "targets": ["*"]}},
    "head alone": {"optimizer__trainable": ["head"]},
    "embedding alone": {"optimizer__trainable": ["embedding"]},
    "some tensors": {"optimizer__trainable": ["*.attention.query", "norm.*"]},
}


@pytest.mark.thorough
@each("layout", LAYOUTS, "4 stages, fsdp 2", SHARDED)
def test_the_step_is_that_of_one_device(layout: Layout) -> None:
    want = plain(describe(**DEEP).model_dump_json())

    assert errors(differentiate(describe(**DEEP, **ALTERNATING), layout), want) == {}


@pytest.mark.thorough
@each("variant", VARIANTS, "tied, windows, soft caps", "logits in chunks")
def test_other_models_have_the_gradients_of_one_device(variant: tuple[dict[str, Any], str]) -> None:
    changes, layout = variant
    want = plain(describe(**changes).model_dump_json())

    assert errors(differentiate(describe(**changes, **ALTERNATING), LAYOUTS[layout]), want) == {}


@pytest.mark.thorough
@each("changes", CURVES, "adapters", "isolated documents")
def test_the_loss_curve_is_that_of_one_device(changes: dict[str, Any]) -> None:
    want = losses(describe(**changes), ONE)

    assert losses(describe(**changes, **ALTERNATING), LAYOUTS[SHARDED]) == pytest.approx(want, abs=1e-4)
    assert want[-1] != pytest.approx(want[0], abs=1e-2)


@pytest.mark.thorough
def test_balancing_biases_get_the_loads_of_all_microbatches() -> None:
    model = SIZE | {"experts": EXPERTS | {"balance": {"biasRate": 0.001}}}
    found = []
    for changes, layout in (({}, ONE), (ALTERNATING, LAYOUTS[SHARDED])):
        step, arguments = trace(describe(model=model, **changes), layout)
        params = flat(step(*arguments)[0].params)
        found.append({name: values for name, values in params.items() if "bias" in name})

    (name,) = found[0]
    assert set(np.unique(np.abs(found[0][name]))) >= {np.float32(0.001)}
    np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.thorough
def test_data_dependencies_order_the_collectives() -> None:
    """A program that is loaded has no other order."""
    step, arguments = trace(describe(model__numLayers=8, **ALTERNATING), LAYOUTS["4 stages, fsdp 2"])
    program = HloProgram(step.lower(*arguments).compile().as_text())

    assert list(find_unordered_collectives(program)) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("for_tpu")
def test_a_step_with_compiled_kernels_lowers_for_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupedQueries, "__call__", partialmethod(run_attention, interpret=False))
    step, arguments = trace(describe(**DEEP, **ALTERNATING), LAYOUTS[SHARDED])

    assert "tpu_custom_call" in step.trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()


@cache
def compile_step(schedule: ScheduleName, microbatches: int) -> Any:
    """Return the compiled step of 4 stages with fsdp 2, for sequences of 128 tokens."""
    changes = {"model__numLayers": 8, "model__embedDim": 64, "training__sequenceLength": 128}
    spec = describe(**changes, parallelism__pipeline={"schedule": schedule})
    layout = LAYOUTS["4 stages, fsdp 2"]
    steps = StepPrograms(spec, build_mesh(jax.devices(), layout))
    arguments, _ = steps._train_signature((1, microbatches, 2))
    return jax.jit(steps.train, donate_argnums=0).lower(*arguments).compile()


@pytest.mark.thorough
def test_more_microbatches_take_no_more_memory() -> None:
    few, many = (compile_step("oneForwardOneBackward", number).memory_analysis() for number in (8, 32))
    gpipe = [compile_step("gpipe", number).memory_analysis().temp_size_in_bytes for number in (8, 32)]

    assert many.temp_size_in_bytes == few.temp_size_in_bytes < gpipe[0]
    assert gpipe[1] > 2 * gpipe[0]


@pytest.mark.thorough
def test_a_stage_runs_forward_once_more_than_with_gpipe() -> None:
    """Of the FLOPs of a layer, three for each of gpipe become four. All stages share the logits of a microbatch."""
    gpipe, found = (
        count_flops(HloProgram(compile_step(name, 8).as_text())) for name in ("gpipe", "oneForwardOneBackward")
    )
    head = 8 * 3 * 2 * 128 * 64 * 272 // 4

    assert found - head == pytest.approx((gpipe - head) * 4 / 3, rel=0.02)


SHAPE = (2, 3, 4)
"""Sequences, tokens and width of a microbatch."""


def run_parts(
    schedule: PipelineSchedule, *, between: Callable[[jax.Array], jax.Array] = jnp.tanh, tapped: Sequence[int] = ()
) -> tuple[Any, PartParams, PartParams, jax.Array]:
    """Return the sums and gradients of a small pipeline, its parameters, and its microbatches.

    The sums contain the squares of the outputs of tapped stages.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    S, D = schedule.stages, SHAPE[-1]
    params = PartParams(
        jax.random.normal(keys[0], (1, 1, D)),
        jax.random.normal(keys[1], (S, 1, D, D)),
        jax.random.normal(keys[2], (1, 1, D)),
    )
    batch = 1 + jnp.abs(jax.random.normal(keys[3], (schedule.microbatches, *SHAPE)))

    def run_stage(stream: HiddenStates, layers: Any, _: Any) -> HiddenStates:
        x = between(stream.x @ layers[0])
        taps = tap_layer(stream.taps, x, tapped, (None,) * 3) if stream.taps else None
        return stream._replace(x=x, taps=taps)

    def read_out(head: Any, stream: HiddenStates, _: Any) -> tuple[jax.Array, jax.Array]:
        found = jnp.sum(stream.x * head) + (jnp.sum(stream.taps.outputs**2) if stream.taps else 0)
        return found, found

    parts = PipelineParts(
        embed=lambda embedding, rows: add_taps(HiddenStates(rows * embedding, None), tapped),
        run_stage=run_stage,
        frozen={},
        read_out=read_out,
        shard=lambda grads: grads,
        order=lambda tree, *_: tree,
    )
    sums, grads = differentiate_pipeline(parts, params, batch, jnp.zeros(()), schedule)
    return sums, grads, params, batch


def total(
    params: PartParams,
    batch: jax.Array,
    between: Callable[[jax.Array], jax.Array] = jnp.tanh,
    tapped: Sequence[int] = (),
) -> jax.Array:
    x, squares = batch * params.embedding[None], jnp.zeros(())
    for number, layer in enumerate(params.layers, 1):
        x = between(x @ layer[0])
        squares += jnp.sum(x**2) * (number in tapped)
    return jnp.sum(x * params.head[None]) + squares


SCHEDULES = [PipelineSchedule(*sizes, alternates=True) for sizes in ((2, 2), (8, 2), (3, 3), (12, 3), (4, 4), (1, 3))]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: f"{one.microbatches} on {one.stages}")
def test_each_microbatch_runs_forward_and_backward_through_all_stages(schedule: PipelineSchedule) -> None:
    sums, grads, params, batch = run_parts(schedule)

    want, gradients = jax.value_and_grad(total)(params, batch)
    assert sums == pytest.approx(float(want), rel=1e-5)
    for found, expected in zip(grads, gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tapped", [(1,), (4, 2)], ids=str)
def test_outputs_of_all_stages_reach_the_loss_and_their_gradients_return(tapped: tuple[int, ...]) -> None:
    sums, grads, params, batch = run_parts(SCHEDULES[4], tapped=tapped)

    want, gradients = jax.value_and_grad(total)(params, batch, tapped=tapped)
    assert sums == pytest.approx(float(want), rel=1e-5)
    for found, expected in zip(grads, gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_idle_stages_add_nothing_even_if_they_compute_no_numbers() -> None:
    """A stage that works on zeros divides by zero here."""

    def divide(x: jax.Array) -> jax.Array:
        return 1 / jnp.where(x == 0, 0.0, 1 + x**2)

    schedule = PipelineSchedule(4, 4, alternates=True)
    sums, grads, params, batch = run_parts(schedule, between=divide)

    want, gradients = jax.value_and_grad(total)(params, batch, divide)
    assert np.isfinite(float(want))
    assert sums == pytest.approx(float(want), rel=1e-5)
    for found, expected in zip(grads, gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_microbatch_of_no_numbers_is_noticed() -> None:
    _, grads, _, _ = run_parts(SCHEDULES[0], between=lambda x: x * jnp.nan)

    assert all(jnp.all(jnp.isnan(leaf)) for leaf in grads)


def test_an_objective_runs_the_model_once() -> None:
    spec: TrainingJobSpec = describe(**ALTERNATING)
    hidden = Hidden(jnp.zeros((1, 2, 16, 16)), None)
    last = LastStage(split_model_of(spec), build_mesh(jax.devices()[:2], TWO_STAGES), hidden)

    tokens = jnp.zeros((1, 2, 16), jnp.int32)

    assert last.run({}, tokens) is hidden
    with pytest.raises(ValueError, match="an objective must run the model once with `schedule: oneForwardOneBackward`"):
        last.run({}, tokens)


def test_modules_of_further_tokens_get_the_microbatch_embedded_again() -> None:
    spec = describe(**ALTERNATING, model__multiTokenPrediction={"depth": 1})
    mesh = build_mesh(jax.devices()[:2], TWO_STAGES)
    hidden = Hidden(jnp.zeros((1, 2, 16, 16)), None)
    table = jax.random.normal(jax.random.key(0), (spec.model.vocab_size, 16))
    tokens = jnp.arange(32).reshape(1, 2, 16)

    last = LastStage(split_model_of(spec), mesh, hidden)
    read = last.run_batch({"embedding": table}, Batch(tokens, tokens, jnp.ones(tokens.shape)))

    assert read.x is hidden.x
    np.testing.assert_allclose(read.embedded, table[tokens])


def test_the_lm_head_reads_hidden_states_that_no_stage_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardedModel, "logits", lambda *arguments: arguments[-1])
    mesh = build_mesh(jax.devices()[:2], TWO_STAGES)
    last = LastStage(split_model_of(describe(**ALTERNATING)), mesh, None)
    split = jax.ShapeDtypeStruct(
        (2, 16, 16), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, None, "stage"))
    )

    with jax.set_mesh(mesh):
        compiled = jax.jit(lambda x: last.logits({}, x)).lower(split).compile()

    assert compiled.output_shardings.is_fully_replicated
