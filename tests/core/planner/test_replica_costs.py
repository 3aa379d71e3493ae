"""Slices as replicas: the layout of each one, and what the exchange between them costs."""

from collections.abc import Callable

import pytest

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import find_slice_shape, plan_sizes
from trainingjob_operator.core.planner.replica_costs import estimate_replica_costs

REPLICAS = {"slices": {"accelerator": "cpu", "topology": "2x2", "min": 1, "max": 4}, "training.globalBatchSize": 32}


def plan_replicas(spec: TrainingJobSpec) -> list[SizePlan]:
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    sizes = [*plan_sizes(spec, shape, num_replicas=4).values()]
    assert all(isinstance(size, SizePlan) for size in sizes), sizes
    return [size for size in sizes if isinstance(size, SizePlan)]


def test_every_size_has_the_layout_of_one_slice_with_its_part_of_the_batch(
    make_spec: Callable[..., TrainingJobSpec],
) -> None:
    spec = make_spec(REPLICAS | {"training.batchSchedule": [{"fromStep": 50, "globalBatchSize": 64}]})
    sizes = plan_replicas(spec)

    assert [size.num_slices for size in sizes] == [1, 2, 3, 4]
    assert len({size.layout for size in sizes}) == 1
    layout = sizes[0].layout
    assert layout
    assert (layout.num_slices, layout.dcn.data, layout.ici.fsdp, layout.padding_rows) == (1, 1, 4, 0)
    assert layout.rows_per_shard * layout.accumulation * layout.batch_shards == 64 // 4
    (smaller,) = layout.smaller_batches
    assert smaller.global_batch_size == 32
    assert smaller.rows_per_shard * smaller.accumulation * layout.batch_shards == 32 // 4


@pytest.mark.parametrize(("degrees", "share"), [({"data": 4, "fsdp": 1}, 1), ({"fsdp": 4}, 2)])
def test_costs_are_those_of_the_shards_of_a_host(
    make_spec: Callable[..., TrainingJobSpec], degrees: dict[str, int], share: int
) -> None:
    spec = make_spec(REPLICAS | {"parallelism.ici": degrees})
    layout = plan_replicas(spec)[0].layout
    assert layout
    assert layout.hosts_per_slice == 2
    costs = estimate_replica_costs(spec, layout, 4)
    num_parameters, num_norms = 131_520, 5 * 64  # each device has the scales of all norms
    delta = 4 * ((num_parameters - num_norms) // share + num_norms)
    assert (costs.kept_bytes, costs.update_bytes, costs.host_bytes) == (2 * delta, delta, 3 * delta)
    assert (costs.written_bytes, costs.read_bytes) == (delta, 3 * delta)
    assert costs.stored_bytes == 2 * 4 * 4 * num_parameters


def test_frozen_parameters_are_not_exchanged(make_spec: Callable[..., TrainingJobSpec]) -> None:
    spec = make_spec(REPLICAS | {"lora": {"rank": 4, "alpha": 8, "targets": ["*.attention.query"]}})
    layout = plan_replicas(spec)[0].layout
    assert layout
    adapters = 2 * 4 * (64 + 64)
    assert estimate_replica_costs(spec, layout, 4).stored_bytes == 2 * 4 * 4 * adapters
