"""Fixes for a job that exceeds the memory: suggested once, for its first size that does."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.corpus.cases import set_at
from tests.corpus.suggestions import read_suggestion
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.oom_fixes import suggest_oom_fixes
from trainingjob_operator.core.planner.planning import find_slice_shape, plan_sizes
from trainingjob_operator.core.validation.validate import validate_job

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]
type MakeRaw = Callable[[dict[str, Any]], dict[str, Any]]

LARGE = {
    "slices.accelerator": "tpu-v5e",
    "slices.topology": "2x2",
    "slices.count": None,
    "slices.min": 1,
    "slices.max": 4,
    "model.embedDim": 8192,
    "model.mlpDim": 28672,
    "model.numLayers": 12,
    "training.sequenceLength": 512,
}


def test_the_first_size_that_is_too_large_speaks_for_all(make_spec: MakeSpec) -> None:
    spec = make_spec(LARGE)
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    found = suggest_oom_fixes(plan_sizes(spec, shape), spec, shape, BUILTIN)

    reported = [outcome[0].nearest for outcome in found.values() if isinstance(outcome, list)]
    assert len(found) == len(reported) == 4
    assert reported == [
        ("spec.slices.topology: 4x4 and spec.memory.remat: saveAttention", "spec.slices.topology: 8x8"),
        (),
        (),
        (),
    ]


def test_sufficient_change_is_not_combined_with_another(make_spec: MakeSpec) -> None:
    spec = make_spec(LARGE | {"model.numLayers": 8})
    shape = find_slice_shape(spec, BUILTIN)
    assert shape

    found = suggest_oom_fixes(plan_sizes(spec, shape), spec, shape, BUILTIN)

    (first, *_) = (outcome for outcome in found.values() if isinstance(outcome, list))
    assert first[0].nearest == ("spec.slices.topology: 4x4",)


def test_sizes_that_fit_stay_as_they_are(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    sizes = plan_sizes(spec, shape)

    assert suggest_oom_fixes(sizes, spec, shape, BUILTIN) is sizes


def test_larger_sizes_get_no_fixes_if_the_smallest_cannot_train(make_spec: MakeSpec) -> None:
    spec = make_spec(LARGE | {"parallelism.dcn": {"data": 2}})  # not to be filled by one slice
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    sizes = plan_sizes(spec, shape)

    assert suggest_oom_fixes(sizes, spec, shape, BUILTIN) is sizes
    assert [outcome[0].path for outcome in sizes.values() if isinstance(outcome, list)] == [
        "spec.parallelism.dcn",
        "spec.model",
        "spec.parallelism.dcn",
        "spec.parallelism.dcn",
    ]


OFFLOADED = "spec.memory.offload: [optimizer] and spec.runtime.resources.memory: 28Gi"


def test_state_of_the_optimizer_moves_to_the_host_if_nothing_else_fits_on_the_same_devices(make_raw: MakeRaw) -> None:
    checked = validate_job("tiny", make_raw(LARGE | {"model.numLayers": 5}))

    assert [problem.nearest for problem in checked.problems] == [("spec.slices.topology: 2x4", OFFLOADED)]


def test_a_job_without_a_mesh_gets_the_same_suggestion(make_raw: MakeRaw) -> None:
    raw = make_raw(LARGE | {"model.numLayers": 5, "parallelism": {"strategy": "auto"}})

    (problem,) = validate_job("tiny", raw).problems
    assert OFFLOADED in problem.nearest
    memory = {"memory.offload": ["optimizer"], "runtime.resources": {"memory": "28Gi"}}
    changed = make_raw(LARGE | {"model.numLayers": 5, "parallelism": {"strategy": "auto"}} | memory)
    assert validate_job("tiny", changed).problems == ()


def test_enough_memory_of_the_pods_is_kept(make_raw: MakeRaw) -> None:
    raw = make_raw(LARGE | {"model.numLayers": 5, "runtime.resources": {"memory": "28Gi"}})

    (problem,) = validate_job("tiny", raw).problems

    assert problem.nearest == ("spec.slices.topology: 2x4", "spec.memory.offload: [optimizer]")


NOT_OFFLOADED: dict[str, dict[str, Any]] = {
    "a policy of remat is enough": {"model.numLayers": 3},
    "an optimizer without state of a matrix": {"optimizer.type": "sgd", "model.numLayers": 12},
    "it is there already": {"memory.offload": ["optimizer"], "model.numLayers": 8, "memory.remat": "full"},
    "memory of a pod that cannot be read": {"runtime.resources": {"memory": "much"}},
}


@pytest.mark.parametrize("changes", NOT_OFFLOADED.values(), ids=NOT_OFFLOADED.keys())
def test_state_of_the_optimizer_stays_on_the_device(changes: dict[str, Any], make_raw: MakeRaw) -> None:
    checked = validate_job("tiny", make_raw(LARGE | {"model.numLayers": 5} | changes))

    (problem,) = (problem for problem in checked.problems if problem.path == "spec.model")
    assert [way for way in problem.nearest if "offload" in way] == []


def test_state_of_the_optimizer_stays_on_devices_of_cpu(make_spec: MakeSpec) -> None:
    spec = make_spec(LARGE | {"model.numLayers": 5})
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    on_cpu = spec.model_copy(update={"slices": spec.slices.model_copy(update={"accelerator": "cpu"})})

    found = suggest_oom_fixes(plan_sizes(on_cpu, shape), on_cpu, shape, BUILTIN, 2**40)

    (first, *_) = (outcome for outcome in found.values() if isinstance(outcome, list))
    assert [way for way in first[0].nearest if "offload" in way] == []


@pytest.mark.parametrize(("host_memory", "fits"), [(27, False), (28, True), (0, True)])
def test_state_of_the_optimizer_must_fit_a_host(host_memory: int, fits: bool, make_spec: MakeSpec) -> None:
    spec = make_spec(LARGE | {"model.numLayers": 5})
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    small = replace(shape, host_memory_bytes=host_memory * 2**30)

    found = suggest_oom_fixes(plan_sizes(spec, small), spec, small, BUILTIN, 2**31)

    (first, *_) = (outcome for outcome in found.values() if isinstance(outcome, list))
    assert (OFFLOADED in first[0].nearest) == fits


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize("layers", [3, 4, 5, 6, 7, 8])
def test_each_suggestion_plans(layers: int, policy: str, make_raw: MakeRaw) -> None:
    raw = make_raw(LARGE | {"model.numLayers": layers, "memory.remat": policy})

    for problem in validate_job("tiny", raw).problems:
        assert problem.nearest
        for way in problem.nearest:
            changed = copy.deepcopy(raw)
            for path, value in read_suggestion("spec", way):
                set_at({"spec": changed}, path, value)
            assert validate_job("tiny", changed).problems == (), way


def test_a_pipeline_may_keep_the_inputs_of_fewer_microbatches(make_spec: MakeSpec) -> None:
    pipeline = {
        "slices.accelerator": "tpu-v5e",
        "slices.topology": "2x2",
        "parallelism.ici": {"stage": 4},
        "parallelism.pipeline.microbatches": 64,
        "memory.remat": "full",
        "training.globalBatchSize": 64,
        "training.sequenceLength": 16384,
        "model.embedDim": 2048,
        "model.numLayers": 16,
    }
    spec = make_spec(pipeline)
    shape = find_slice_shape(spec, BUILTIN)
    assert shape

    found = suggest_oom_fixes(plan_sizes(spec, shape), spec, shape, BUILTIN)

    (first, *_) = (outcome for outcome in found.values() if isinstance(outcome, list))
    assert "spec.parallelism.pipeline.schedule: oneForwardOneBackward" in first[0].nearest
    # The schedule keeps least: nothing else is suggested for a job that has it.
    alternating = make_spec(pipeline | {"parallelism.pipeline.schedule": "oneForwardOneBackward"})
    assert suggest_oom_fixes(plan_sizes(alternating, shape), alternating, shape, BUILTIN) == plan_sizes(
        alternating, shape
    )
