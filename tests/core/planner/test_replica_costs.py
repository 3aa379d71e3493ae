"""Slices as replicas: the layout of each one, and what the exchange between them costs."""

from collections.abc import Callable

import pytest

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import JobIdentity, Replication, World
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import find_slice_shape, plan_job, plan_sizes
from trainingjob_operator.core.planner.replica_costs import describe_replicas, estimate_replica_costs
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.run_config import attach_program_config, build_run_config
from trainingjob_operator.core.validation.validate import ValidationResult

REPLICAS = {
    "slices": {"accelerator": "cpu", "topology": "2x2", "min": 1, "max": 4},
    "training.globalBatchSize": 32,
    "parallelism.replicas": {},
}


def plan_replicas(spec: TrainingJobSpec) -> list[SizePlan]:
    shape = find_slice_shape(spec, BUILTIN)
    assert shape
    sizes = [*plan_sizes(spec, shape).values()]
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


def test_plan_shows_what_the_exchange_costs_and_the_tokens_of_the_present_slices(
    make_spec: Callable[..., TrainingJobSpec],
) -> None:
    plan = plan_job(make_spec(REPLICAS))
    assert plan.has_replicas
    assert "\n".join(describe_replicas(plan)) == (
        "each slice trains alone for 36 steps; then a host writes 264 kB and reads up to 791 kB of other slices\n"
        "outer optimizer: 527 kB of host memory, 264 kB more at the end of a round; rounds take at least 4.21 MB of "
        "storage"
    )
    assert [plan.tokens_of_step(number) for number in (1, 4)] == [32 * 64 // 4, 32 * 64]
    whole = plan_job(make_spec({}))
    assert not whole.has_replicas
    assert (describe_replicas(whole), whole.tokens_of_step(1)) == ([], whole.tokens_per_step)


def test_mfu_of_a_replica_counts_its_part_of_the_batch(make_spec: Callable[..., TrainingJobSpec]) -> None:
    slices = {"accelerator": "tpu-v5e", "topology": "2x4", "count": 4}
    replica = plan_job(make_spec({"slices": slices, "training.globalBatchSize": 256, "parallelism.replicas": {}}))
    alone = plan_job(make_spec({"slices": slices | {"count": 1}, "training.globalBatchSize": 64}))
    assert predict_sizes(replica)[4] == predict_sizes(alone)[1]


def test_pods_have_one_layout_and_each_world_its_replication(make_spec: Callable[..., TrainingJobSpec]) -> None:
    plan = plan_job(make_spec(REPLICAS | {"parallelism.replicas": {"waitFor": "2m", "syncEvery": 9}}))
    config = build_run_config(JobIdentity(name="demo", namespace="research", uid="a"), plan)
    assert [layout.num_slices for layout in config.layouts] == [1]
    world = World(generation=1, job_uid="a", coordinator="a:1", members=())
    assert attach_program_config(world, plan, config.layouts[0]).replication == Replication(
        slices_max=4, sync_every=9, learning_rate=0.3, momentum=0.9, wait_seconds=120.0
    )


def test_memory_that_holds_the_outer_optimizer_brings_no_warning(check: Callable[..., ValidationResult]) -> None:
    result = check(REPLICAS | {"checkpoint.save.everySteps": 36})
    assert (result.problems, result.warnings) == ((), ())
    assert result.plan
    assert result.plan.has_replicas
