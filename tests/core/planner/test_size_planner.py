"""Sizes: how a batch is split over the mesh, and why a size is illegal."""

from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.planning import plan_job

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

# changes: (slices, rows a shard, microsteps, padding rows) of each size
BATCHES: dict[str, tuple[dict[str, Any], list[tuple[int, int, int, int]]]] = {
    "it divides: one microstep": ({"training.globalBatchSize": 32}, [(1, 8, 1, 0)]),
    "a limit: as many microsteps as it takes": (
        {"training.globalBatchSize": 32, "training.maxPerDeviceBatch": 3},
        [(1, 2, 4, 0)],
    ),
    "a limit above the batch changes nothing": (
        {"training.globalBatchSize": 32, "training.maxPerDeviceBatch": 100},
        [(1, 8, 1, 0)],
    ),
    "it does not divide: the least padding": ({"training.globalBatchSize": 30}, [(1, 8, 1, 2)]),
    "the least padding comes before the fewest microsteps": (
        {"training.globalBatchSize": 28, "training.maxPerDeviceBatch": 4},
        [(1, 1, 7, 0)],
    ),
    "fewer rows than shards": ({"training.globalBatchSize": 3}, [(1, 1, 1, 1)]),
    "one batch at every size": (
        {"slices.count": None, "slices.min": 1, "slices.max": 3, "training.globalBatchSize": 24},
        [(1, 6, 1, 0), (2, 3, 1, 0), (3, 2, 1, 0)],
    ),
    "one device": ({"slices.topology": "1x1", "training.globalBatchSize": 5}, [(1, 5, 1, 0)]),
    "tensor axes do not split the batch": ({"parallelism.ici": {"fsdp": 2, "tensor": 2}}, [(1, 4, 1, 0)]),
    "memory is a limit too": (
        {
            "slices.accelerator": "tpu-v5e",
            "slices.topology": "1x1",
            "training.globalBatchSize": 64,
            "training.sequenceLength": 32_768,
        },
        [(1, 8, 8, 0)],
    ),
}


def describe(layout: Layout) -> tuple[int, int, int, int]:
    return (layout.num_slices, layout.rows_per_shard, layout.accumulation, layout.padding_rows)


@pytest.mark.parametrize(("changes", "want"), BATCHES.values(), ids=BATCHES.keys())
def test_the_batch_is_split(
    make_spec: MakeSpec, changes: dict[str, Any], want: list[tuple[int, int, int, int]]
) -> None:
    planned = plan_job(make_spec(changes))

    assert [describe(size.layout) for size in planned.sizes if size.layout] == want


def test_memory_is_estimated_for_the_rows_of_a_microstep(make_spec: MakeSpec) -> None:
    few, many = (plan_job(make_spec({"training.maxPerDeviceBatch": limit})).sizes[0].memory for limit in (1, 2))

    assert few
    assert many
    assert many.activations == 2 * few.activations


def test_illegal_size_reports_the_reason_and_is_never_formed(make_spec: MakeSpec) -> None:
    changes = {"slices.count": None, "slices.min": 1, "slices.max": 4, "parallelism.dcn": {"data": 1, "fsdp": -1}}
    planned = plan_job(make_spec(changes))

    assert planned.allowed_sizes == (1, 2, 4)
    assert planned.sizes[2].layout is None
    assert planned.sizes[2].invalid_reason == (
        "spec.parallelism.ici.fsdp: 12 (ici fsdp=4 x dcn fsdp=3) must divide `spec.model.embedDim` (64). "
        "Nearest legal values: spec.model.embedDim: 60, spec.model.embedDim: 72."
    )
    assert [planned.find_largest_size(healthy) for healthy in range(6)] == [None, 1, 2, 2, 4, 4]
    with pytest.raises(KeyError, match="no layout for 3 slices"):
        planned.layout(3)


def test_a_layout_is_found_by_its_size(make_spec: MakeSpec) -> None:
    planned = plan_job(make_spec({"slices.count": 2}))

    assert planned.layout(2).num_hosts == 4
    assert planned.layout(2).num_devices == 8
    assert planned.layout(2).rows_per_microbatch == 8


def test_tokens_of_a_step_leave_padding_out(make_spec: MakeSpec) -> None:
    assert plan_job(make_spec({"training.globalBatchSize": 3})).tokens_per_step == 3 * 64


def test_slices_outside_the_hardware_table_have_no_plan(make_spec: MakeSpec) -> None:
    with pytest.raises(ValueError, match="cpu has no slice of topology 2x2x2"):
        plan_job(make_spec({"slices.topology": "2x2x2"}))


def test_only_requested_sizes_are_planned(make_spec: MakeSpec) -> None:
    changes = {"slices.count": None, "slices.min": 1, "slices.max": 4, "slices.allowed": [4, 1, 2]}
    planned = plan_job(make_spec(changes))

    assert planned.allowed_sizes == (1, 2, 4)
    assert [size.num_slices for size in planned.sizes] == [1, 2, 4]
    assert [planned.find_largest_size(healthy) for healthy in range(6)] == [None, 1, 2, 2, 4, 4]
