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


LONG_PIPELINE: dict[str, Any] = {
    "slices.accelerator": "tpu-v5e",
    "parallelism.ici": {"stage": 2, "fsdp": 2},
    "model.embedDim": 1024,
    "model.mlpDim": 4096,
    "memory.remat": "full",
}
# changes: (batch size, rows a shard, microbatches, microsteps, padding rows) of the largest and of each smaller batch
GROWING: dict[str, tuple[dict[str, Any], list[tuple[int, int, int, int, int]]]] = {
    "one device row, then many": (
        {"training.globalBatchSize": 4, "training.batchSchedule": [(10, 16), (20, 32)]},
        [(32, 8, 1, 1, 0), (4, 1, 1, 1, 0), (16, 4, 1, 1, 0)],
    ),
    "a limit that only the largest reaches": (
        {
            "training.globalBatchSize": 8,
            "training.batchSchedule": [(10, 32)],
            "training.maxPerDeviceBatch": 4,
        },
        [(32, 4, 1, 2, 0), (8, 2, 1, 1, 0)],
    ),
    "padding of the smaller ones": (
        {"training.globalBatchSize": 3, "training.batchSchedule": [(10, 6), (20, 8)]},
        [(8, 2, 1, 1, 0), (3, 1, 1, 1, 1), (6, 2, 1, 1, 2)],
    ),
    "microbatches of a pipeline": (
        {
            "parallelism.ici": {"stage": 2, "fsdp": 2},
            "training.globalBatchSize": 8,
            "training.batchSchedule": [(10, 32)],
        },
        [(32, 2, 8, 1, 0), (8, 1, 4, 1, 0)],
    ),
    "microbatches that fit: 26 of 52 sequences would not": (
        LONG_PIPELINE
        | {"training.globalBatchSize": 52, "training.batchSchedule": [(10, 136)], "training.sequenceLength": 65_536},
        [(136, 1, 4, 17, 0), (52, 1, 2, 13, 0)],
    ),
}


@pytest.mark.parametrize(("changes", "want"), GROWING.values(), ids=GROWING)
def test_each_batch_of_a_schedule_is_split(
    make_spec: MakeSpec, changes: dict[str, Any], want: list[tuple[int, int, int, int, int]]
) -> None:
    phases = changes["training.batchSchedule"]
    schedule = [{"fromStep": step, "globalBatchSize": size} for step, size in phases]
    plan = plan_job(make_spec(changes | {"training.batchSchedule": schedule}))

    layout = plan.layout(1)
    batches = (phases[-1][1], *plan.spec.training.smaller_batches)
    assert [(batch, *numbers(layout.for_batch(batch))) for batch in batches] == want
    assert plan.tokens_per_step == phases[-1][1] * plan.spec.training.sequence_length


def numbers(layout: Layout) -> tuple[int, int, int, int]:
    return (layout.rows_per_shard, layout.microbatches, layout.accumulation, layout.padding_rows)


def test_memory_of_a_schedule_is_that_of_the_batch_that_needs_most(make_spec: MakeSpec) -> None:
    """A limit makes the rows of the largest batch few: 28 divide into 1 row each, and 16 into 4."""
    limit = {"training.maxPerDeviceBatch": 4}
    growing = {"training.globalBatchSize": 16, "training.batchSchedule": [{"fromStep": 9, "globalBatchSize": 28}]}
    small, large, both = (
        plan_job(make_spec(limit | changes)).sizes[0].memory
        for changes in ({"training.globalBatchSize": 16}, {"training.globalBatchSize": 28}, growing)
    )

    assert small
    assert large
    assert both
    assert small.total > large.total
    assert both == small


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
