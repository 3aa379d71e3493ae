"""Fixes for a job that exceeds the memory: suggested once, for its first size that does."""

from collections.abc import Callable
from typing import Any

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.oom_fixes import suggest_oom_fixes
from trainingjob_operator.core.planner.planning import find_slice_shape, plan_sizes

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

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
