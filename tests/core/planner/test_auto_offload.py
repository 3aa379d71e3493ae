"""`strategy: auto` moves optimizer state to host memory only where nothing else fits and pods hold it."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.planner import test_oom_fixes
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import World
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import find_slice_shape
from trainingjob_operator.core.planner.roofline import predict_sizes, update_transfer_seconds
from trainingjob_operator.core.planner.run_config import attach_program_config
from trainingjob_operator.core.planner.strategy import choose_strategy, list_searches
from trainingjob_operator.core.validation.validate import validate_job

type Changes = Mapping[str, Any]
type MakeSpec = Callable[[Changes], TrainingJobSpec]
type MakeRaw = Callable[[Changes], dict[str, Any]]

LARGE = test_oom_fixes.LARGE | {
    "model.numLayers": 5,
    "parallelism": {"strategy": "auto"},
    "runtime.resources": {"memory": "28Gi"},
}


def plan_of(raw: dict[str, Any]) -> Plan:
    checked = validate_job("tiny", raw)
    assert checked.plan, checked.problems
    return checked.plan


def test_state_moves_to_the_host_if_nothing_else_fits(make_raw: MakeRaw) -> None:
    plan = plan_of(make_raw(LARGE))

    assert plan.spec.memory.offload == ("optimizer",)
    assert plan.allowed_sizes == (1, 2, 3, 4)
    assert plan.choice
    assert plan.choice.chosen.describe().endswith(" · offload optimizer")
    assert plan.optimizer_memory
    assert plan.optimizer_memory.reason == "`strategy: auto` found no mesh whose devices hold it"
    world = World(generation=1, job_uid="uid", coordinator="10.0.0.1:1", members=())
    assert attach_program_config(world, plan, plan.layout(1)).offload == ("optimizer",)


def test_its_transfers_are_part_of_the_time_that_ranks_it(make_raw: MakeRaw) -> None:
    plan = plan_of(make_raw(LARGE))

    layout = plan.layout(4)
    assert plan.choice
    assert plan.choice.chosen.step_seconds == predict_sizes(plan)[4].seconds
    assert 0 < update_transfer_seconds(plan.spec, plan.shape, layout) < plan.choice.chosen.step_seconds


def test_chosen_fields_give_the_same_plan_if_set(make_raw: MakeRaw) -> None:
    plan = plan_of(make_raw(LARGE))
    assert plan.choice
    best = plan.choice.chosen
    mesh = {side: dict(getattr(best, side).items()) for side in ("ici", "dcn")}
    written = plan_of(
        make_raw(LARGE | {"parallelism": mesh, "memory": {"remat": best.remat, "offload": list(best.offload or ())}})
    )

    assert [size.layout for size in written.sizes] == [size.layout for size in plan.sizes]
    assert written.optimizer_memory
    assert written.optimizer_memory.reason == "`memory.offload` names it"


def test_activations_on_the_host_stay_there(make_raw: MakeRaw) -> None:
    custom = {"memory": {"remat": "custom", "offload": ["layerInput"]}, "runtime.resources": {"memory": "64Gi"}}

    assert plan_of(make_raw(LARGE | custom)).spec.memory.offload == ("layerInput", "optimizer")


STAYS: dict[str, dict[str, Any]] = {
    "a policy of remat is enough": {"model.numLayers": 3},
    "the spec has it there already": {"memory.offload": ["optimizer"]},
    "a larger slice": {"slices.topology": "4x4"},
}


@pytest.mark.parametrize("changes", STAYS.values(), ids=STAYS.keys())
def test_the_search_moves_nothing(changes: dict[str, Any], make_raw: MakeRaw) -> None:
    plan = plan_of(make_raw(LARGE | changes))

    assert plan.choice
    assert plan.choice.chosen.offload is None


REJECTED: dict[str, dict[str, Any]] = {
    "pods without that memory": {"runtime.resources": {"memory": "27Gi"}},
    "pods without memory for anything but themselves": {"runtime.resources": {"memory": "512Mi"}},
    "memory of a pod that cannot be read": {"runtime.resources": {"memory": "much"}},
    "an optimizer without state of a matrix": {"optimizer.type": "sgd", "model.numLayers": 12},
    "parameters alone that are too large": {"model.numLayers": 100},
}


@pytest.mark.parametrize("changes", REJECTED.values(), ids=REJECTED.keys())
def test_a_job_that_does_not_fit_with_it_is_rejected(changes: dict[str, Any], make_raw: MakeRaw) -> None:
    checked = validate_job("tiny", make_raw(LARGE | changes))

    assert "spec.model" in {problem.path for problem in checked.problems}


def test_state_stays_on_devices_of_cpu(make_spec: MakeSpec) -> None:
    spec = make_spec(LARGE)
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    on_cpu = spec.model_copy(update={"slices": spec.slices.model_copy(update={"accelerator": "cpu"})})

    assert choose_strategy(spec, shape, 2**40)
    assert choose_strategy(spec, shape) is None, "the memory of pods is unknown"
    assert choose_strategy(on_cpu, shape, 2**40) is None


def test_no_search_starts_after_one_that_finds_a_mesh(make_spec: MakeSpec) -> None:
    small, large = make_spec(LARGE | {"model.numLayers": 3}), make_spec(LARGE)
    shape = find_slice_shape(large, BUILTIN)
    assert shape

    assert [len(list(list_searches(spec, shape, 2**40))) for spec in (small, large)] == [1, 2]


@pytest.mark.thorough
@given(
    slices=st.sampled_from([("tpu-v5e", "2x2"), ("tpu-v5e", "2x4"), ("tpu-v5p", "2x2x1")]),
    optimizer=st.sampled_from(["adamw", "lion", "adafactor", "muon", "sgd"]),
    layers=st.integers(3, 12),
    memory=st.integers(20, 100),
    most=st.integers(1, 3),
)
@settings(max_examples=20, deadline=None)
def test_what_auto_chooses_has_no_problem_of_memory(
    slices: tuple[str, str], optimizer: str, layers: int, memory: int, most: int, make_raw: MakeRaw
) -> None:
    changes = {
        "slices.accelerator": slices[0],
        "slices.topology": slices[1],
        "slices.max": most,
        "optimizer.type": optimizer,
        "model.numLayers": layers,
        "runtime.resources": {"memory": f"{memory}Gi"},
    }
    checked = validate_job("tiny", make_raw(LARGE | changes))

    paths = {problem.path for problem in checked.problems}
    assert paths <= {"spec.model"}, "memory that a choice needs is there"
    if checked.plan and checked.plan.choice and checked.plan.choice.chosen.offload:
        assert checked.plan.optimizer_memory
        assert checked.plan.optimizer_memory.name == "host"
