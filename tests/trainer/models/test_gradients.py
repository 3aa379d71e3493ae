"""Gradients in bfloat16: as near to float32 as products in it are, and the same on every layout."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2e.benchmarks.gradients import (
    CASES,
    MAX_ERROR,
    SINGLE_DEVICE,
    Gradients,
    Section,
    draw_tokens,
    errors,
    make_spec,
    measure,
)
from tests.support.trainer.cases import each
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.step import StepPrograms

LENGTH, WIDTH = 128, 16
TOKENS = draw_tokens(LENGTH, power=1.2)
SUMS = {"scatter-add", "reduce_sum", "cumsum", "psum", "psum_invariant", "reduce_scatter", "reduce_window_sum"}


@cache
def alone(written: str) -> Gradients:
    """Return the gradients on one device in one microbatch, computed once for all layouts."""
    return measure(TrainingJobSpec.model_validate_json(written), SINGLE_DEVICE, TOKENS)


def describe(changes: Section, compute: str) -> TrainingJobSpec:
    return make_spec(changes, compute, length=LENGTH, width=WIDTH)


def test_a_token_occurs_often_enough_to_show_how_its_gradients_are_summed() -> None:
    assert np.sum(TOKENS == 0) > 2 * 256


@pytest.mark.thorough
@each(
    "case",
    CASES,
    "1 microstep",
    "16 microsteps",
    "data 2 over slices, fsdp 4",
    "tied embeddings",
    "query-key norm, fsdp 2, tensor 2",
)
def test_bfloat16_is_near_float32_and_the_same_on_every_layout(case: tuple[Section, Layout]) -> None:
    changes, layout = case
    exact, near = (alone(describe(changes, compute).model_dump_json()) for compute in ("float32", "bfloat16"))

    found = measure(describe(changes, "bfloat16"), layout, TOKENS)

    assert {tensor: error for tensor, error in errors(found, exact).items() if error > MAX_ERROR} == {}
    assert {tensor: error for tensor, error in errors(found, near).items() if error > MAX_ERROR} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_a_step_sums_nothing_in_bfloat16(name: str) -> None:
    """Matmuls accumulate in float32 by themselves; all other sums must request it."""
    changes, layout = CASES[name]
    steps = StepPrograms(describe(changes, "bfloat16"), build_mesh(jax.devices()[: layout.num_devices], layout))
    rows = layout.rows_per_shard * steps.batch_sharding.mesh.shape["data"] * steps.batch_sharding.mesh.shape["fsdp"]
    shape = (layout.accumulation, layout.microbatches, rows * steps.batch_sharding.mesh.shape["expert"])
    arguments, _ = steps._train_signature(shape)

    assert (
        list(find_sums(jax.make_jaxpr(steps.train)(*arguments).jaxpr, steps.batch_sharding.mesh.shape["stage"])) == []
    )


def find_sums(program: Any, num_stages: int, length: int = LENGTH) -> Iterator[str]:
    """Yield what adds up many bfloat16 numbers: sums of an array, and what a loop carries from one turn to the next.

    A pipeline's stages sum numbers of which all but one are zero. The stream through the layers is no sum.
    """
    for line in walk(program):
        kind = line.primitive.name
        operands = [operand.aval for operand in line.invars]
        if kind in SUMS and operands[0].dtype == jnp.bfloat16:
            addends = operands[0].size // max(line.outvars[0].aval.size, 1)
            is_over_stages = set(line.params["axes"]) == {"stage"} if kind == "psum" else addends <= num_stages
            if not (is_over_stages and kind in ("psum", "reduce_sum")):
                yield f"{kind} {operands[0]}"
        if kind == "scan":
            _, carried, _ = line.params["ft_in"].update(operands).unpack()
            for operand in carried:
                if operand.dtype == jnp.bfloat16 and operand.shape[-1] == WIDTH and length not in operand.shape:
                    yield f"carried {operand}"


def walk(program: Any) -> Iterator[Any]:
    """Yield the lines of a program and of all programs inside it."""
    for line in program.eqns:
        yield line
        inner = jax.tree.leaves(list(line.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns"))
        for one in inner:
            if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
                yield from walk(getattr(one, "jaxpr", one))
