"""Kernels inside the sharded step: the loss and gradients of the plain implementation, on every layout."""

from functools import cache, partialmethod
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.kernels import QUERIES, run_attention
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import BATCH, ONE, flat, initial_state, make_index, spec_with
from tests.trainer.models.test_gradients import walk
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.models.attention import GroupedQueries
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Batch, Signal, State
from trainingjob_trainer.step import StepPrograms

LARGEST_ERROR = 1e-5
"""Of the loss and of each tensor's gradient, relative to its norm."""

type Found = tuple[float, dict[str, np.ndarray]]


def describe(**changes: Any) -> TrainingJobSpec:
    """Return the spec of a tiny job whose first moments are the gradients of the last step."""
    return spec_with(optimizer__adamw={"beta1": 0}, optimizer__clipNorm=0, **changes)


DENSE = describe()


def prepare(spec: TrainingJobSpec, layout: Layout) -> tuple[StepPrograms, State, Batch]:
    """Return the programs of a layout, which no other test shares, with a state and a batch."""
    steps = StepPrograms(spec, build_mesh(jax.devices()[: layout.num_devices], layout))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    state = jax.device_put(initial_state(spec.model_dump_json()), shardings)
    loader = BatchLoader(layout, steps.batch_sharding, BATCH)
    return steps, state, loader.train_batch(make_index(spec), 1, spec.training.seed)


def trace(spec: TrainingJobSpec, layout: Layout) -> tuple[Any, tuple[Any, ...]]:
    """Return the train step of a layout as a jitted function, and its arguments."""
    steps, state, batch = prepare(spec, layout)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    return jax.jit(steps.train, out_shardings=(shardings, None)), (
        state,
        batch,
        steps.controls(Signal.NONE, spec.training.steps),
    )


def differentiate(spec: TrainingJobSpec, layout: Layout) -> Found:
    """Return the loss and the gradients of the first step."""
    step, arguments = trace(spec, layout)
    state, measures = step(*arguments)
    return float(measures.loss), flat(state.opt[1].mu)


@cache
def plain(written: str) -> Found:
    """Return the loss and the gradients of the plain implementation on one device."""
    return differentiate(TrainingJobSpec.model_validate_json(written), ONE)


def errors(found: Found, want: Found) -> dict[str, float]:
    """Return the error of the loss and of each gradient, where it is too large."""
    relative = {"loss": abs(found[0] - want[0]) / want[0]}
    for name, gradient in want[1].items():
        relative[name] = float(np.linalg.norm(found[1][name] - gradient) / np.linalg.norm(gradient))
    return {name: error for name, error in relative.items() if not error <= LARGEST_ERROR}


@pytest.mark.thorough
@each("layout", LAYOUTS, "data 2 over slices, fsdp 4")
def test_an_attention_kernel_computes_the_same_step(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    want = plain(DENSE.model_dump_json())
    monkeypatch.setattr(GroupedQueries, "__call__", run_attention)

    assert errors(differentiate(DENSE, layout), want) == {}


TENSOR = make_layout(ici=AxisDegrees(tensor=2), rows_per_shard=8)
CONTEXT = make_layout(ici=AxisDegrees(context=2), rows_per_shard=8)


@pytest.mark.thorough
def test_keys_that_are_split_like_queries_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    want = plain(DENSE.model_dump_json())
    monkeypatch.setattr(GroupedQueries, "__call__", partialmethod(run_attention, keys=QUERIES))

    assert "loss" in errors(differentiate(DENSE, CONTEXT), want)


def test_a_mesh_axis_must_divide_every_dim_that_it_should_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupedQueries, "__call__", run_attention)

    with pytest.raises(ValueError, match="`kv_heads` must be divisible"):
        differentiate(describe(model__numKvHeads=1), TENSOR)


@pytest.mark.usefixtures("for_tpu")
@each("layout", LAYOUTS, "data 2 over slices, 2 stages, context 2, accumulation 2")
def test_a_step_with_compiled_kernels_lowers_for_a_tpu(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupedQueries, "__call__", partialmethod(run_attention, interpret=False))
    step, arguments = trace(DENSE, layout)

    assert "tpu_custom_call" in step.trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("for_tpu")
def test_a_kernel_that_is_left_to_the_partitioner_does_not_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(function: Any, **_: Any) -> Any:
        return function

    monkeypatch.setattr(GroupedQueries, "__call__", partialmethod(run_attention, interpret=False, mapper=leave))
    step, arguments = trace(DENSE, LAYOUTS["data 2 over slices, fsdp 4"])

    with pytest.raises(NotImplementedError, match="Mosaic kernels cannot be automatically partitioned"):
        step.trace(*arguments).lower(lowering_platforms=("tpu",))


def test_stage_runs_only_the_kernels_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupedQueries, "__call__", run_attention)
    step, arguments = trace(DENSE, LAYOUTS["2 stages, fsdp 2, tensor 2, 4 microbatches"])

    calls = [line for line in walk(step.trace(*arguments).jaxpr) if line.primitive.name == "pallas_call"]
    shapes = {operand.aval.shape for line in calls for operand in line.invars if operand.aval.dtype == np.float32}

    queries, keys = (1, 2, 16, 8), (1, 1, 16, 8)  # of one row, half of the heads, the whole sequence
    assert shapes == {queries, keys}
