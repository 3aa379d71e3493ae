"""Every mesh axis, every pair and some triples, for models of four kinds: the training of one device."""

from functools import cache
from typing import Any

import jax
import pytest

from e2e.benchmarks.gradients import ALL_EXPERTS, BATCH, Gradients, draw_tokens, errors, measure
from tests.support.trainer.cases import each
from tests.support.trainer.meshes import MODELS, describe_mesh, has_mesh, list_axes, plan_mesh
from tests.support.trainer.training import initial_state, make_index
from trainingjob_api.base import Axis
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Signal
from trainingjob_trainer.step import StepPrograms

NUM_STEPS = 20
LENGTH = 32
COUNTERS_AND_BATCH = 2048
"""Bytes of a step's arguments beside parameters and moments, at most."""
TEMPORARIES = (0.7, 1.35)
"""Temporary bytes of a step in relation to the plan, which is made for larger models."""

type Case = tuple[str, tuple[Axis, ...]]

QUICK: tuple[Case, ...] = (
    ("dense", ("data", "fsdp", "context")),
    ("windows", ("stage", "fsdp", "context")),
    ("dropless experts", ("fsdp", "expert", "tensor")),
)
IN_BFLOAT16: tuple[Case, ...] = (*QUICK, ("latent", ("expert", "context", "tensor")))
CASES = {f"{model}: {' '.join(axes)}": (model, axes) for model in MODELS for axes in list_axes()}
VALID = {name: case for name, case in CASES.items() if has_mesh(*case)}
QUICK_NAMES = [f"{model}: {' '.join(axes)}" for model, axes in QUICK]
INVALID = {name: case for name, case in CASES.items() if not has_mesh(*case)}


def train(model: str, axes: tuple[Axis, ...]) -> tuple[list[float], Any, SizePlan]:
    """Return the losses of a job's steps, the memory of the compiled step, and the plan."""
    spec = describe_mesh(model, axes)
    size = plan_mesh(spec)
    layout = size.layout
    assert layout
    steps = StepPrograms(spec, build_mesh(jax.devices()[: layout.num_devices], layout))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    state = jax.device_put(initial_state(describe_mesh(model, ()).model_dump_json()), shardings)
    loader = BatchLoader(layout, steps.batch_sharding, spec.training.global_batch_size)
    index, controls = make_index(spec), steps.controls(Signal.NONE, NUM_STEPS)
    step = jax.jit(steps.train, donate_argnums=0, out_shardings=(shardings, None))
    compiled = step.lower(state, loader.train_batch(index, 1, 0), controls).compile()
    losses = []
    for number in range(1, NUM_STEPS + 1):
        state, metrics = compiled(state, loader.train_batch(index, number, 0), controls)
        losses.append(float(metrics.loss))
    return losses, compiled.memory_analysis(), size


@cache
def train_alone(model: str) -> list[float]:
    """Return the losses on one device."""
    return train(model, ())[0]


@pytest.mark.thorough
@each("case", VALID, *QUICK_NAMES)
def test_a_mesh_trains_as_one_device_in_the_planned_memory(case: Case) -> None:
    losses, memory, size = train(*case)

    assert losses == pytest.approx(train_alone(case[0]), rel=1e-4)
    assert losses[-1] < losses[0]
    planned = size.memory
    assert planned
    state = planned.params + planned.optimizer
    assert state <= memory.argument_size_in_bytes <= state + COUNTERS_AND_BATCH
    temporaries = memory.temp_size_in_bytes / (planned.total - state)
    assert TEMPORARIES[0] < temporaries < TEMPORARIES[1]


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
def test_a_mesh_that_a_model_does_not_have_is_rejected_with_the_reason(case: Case) -> None:
    model, axes = case
    size = plan_mesh(describe_mesh(model, axes))

    reasons = {"expert": "`spec.model.experts` is not set", "stage": "`spec.model.layers` leaves 1 layer outside"}
    assert size.layout is None
    assert any(reasons[axis] in size.invalid_reason for axis in ("expert", "stage") if axis in axes)


@cache
def differentiate(model: str, axes: tuple[Axis, ...], compute: str) -> Gradients:
    """Return the gradients of a step. Every expert has every token: rounding alone would route tokens differently."""
    section = MODELS[model]
    if "experts" in section:
        section = section | {"experts": section["experts"] | ALL_EXPERTS}
    changes: dict[str, Any] = {
        "precision__compute": compute,
        "optimizer__adamw": {"beta1": 0},
        "optimizer__clipNorm": 0,
    }
    sizes = {"training__globalBatchSize": BATCH, "training__sequenceLength": LENGTH}
    spec = describe_mesh(model, axes, model=section, **changes, **sizes)
    layout = plan_mesh(spec).layout
    assert layout
    return measure(spec, layout, draw_tokens(LENGTH))


@each("case", {" ".join((model, *axes)): (model, axes) for model, axes in IN_BFLOAT16})
def test_a_mesh_adds_no_error_to_gradients_in_bfloat16(case: Case) -> None:
    model, axes = case
    exact = {name: grad for name, grad in differentiate(model, (), "float32").items() if grad.any()}

    alone, found = (errors(differentiate(model, where, "bfloat16"), exact) for where in ((), axes))

    assert {name: error for name, error in found.items() if not error <= 1.5 * alone[name] + 0.01} == {}
