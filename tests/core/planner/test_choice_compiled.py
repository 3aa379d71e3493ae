"""The planner's choice compared with every valid mesh by real compilers: no other mesh is better."""

import json
from pathlib import Path

import pytest

from e2e.benchmarks.compiler_meshes import list_jobs, mesh_name
from trainingjob_api.compile_report import CompiledStep
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import Parallelism
from trainingjob_operator.core.planner.interconnect import axis_bandwidths
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_step

RECORD = json.loads((Path(__file__).parents[3] / "tests/golden/compiler_meshes.json").read_text())
JOBS = list_jobs()
BESIDE = {("fsdp",)}
"""Axes along which everything travels beside products; along all others a step waits."""


def left_to_the_planner(spec: TrainingJobSpec) -> TrainingJobSpec:
    return spec.model_copy(update={"parallelism": Parallelism(strategy="auto")})


def compiled_seconds(plan: Plan, step: CompiledStep) -> float:
    """Return the roofline of a step over the compiler's figures; only what goes to memory and back is estimated."""
    (size,) = plan.sizes
    assert size.layout
    predicted = predict_step(plan.spec, plan.shape, size.layout)
    assert predicted
    rates = axis_bandwidths(plan.shape, size.layout.ici)
    sent = [(one.axes, one.bytes / sum(rates[axis] for axis in one.axes)) for one in step.collectives]
    beside = sum(seconds for axes, seconds in sent if axes in BESIDE)
    waiting = sum(seconds for axes, seconds in sent if axes not in BESIDE)
    return max(step.flops / plan.shape.rates.bfloat16, predicted.memory_seconds, beside) + waiting


def test_every_mesh_is_recorded() -> None:
    assert {name: list(meshes) for name, meshes in RECORD.items()} == {name: list(jobs) for name, jobs in JOBS.items()}


@pytest.mark.parametrize("name", JOBS)
def test_these_are_all_meshes_that_are_valid(name: str) -> None:
    choice = plan_job(left_to_the_planner(next(iter(JOBS[name].values())))).choice

    assert choice
    assert choice.num_candidates == len(JOBS[name])


@pytest.mark.parametrize("name", JOBS)
def test_no_mesh_is_better_than_the_one_chosen(name: str) -> None:
    choice = plan_job(left_to_the_planner(next(iter(JOBS[name].values())))).choice
    assert choice
    chosen = mesh_name({axis: degree for axis, degree in choice.chosen.ici.items() if degree > 1})

    seconds = {
        mesh: compiled_seconds(plan_job(spec), CompiledStep.model_validate(RECORD[name][mesh]))
        for mesh, spec in JOBS[name].items()
    }

    assert seconds[chosen] == min(seconds.values())
