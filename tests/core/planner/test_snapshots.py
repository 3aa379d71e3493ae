"""Snapshots in the plan: their bytes on a host, and how many steps apart they are."""

from typing import Any

import pytest

from tests.corpus.cases import load_example
from tests.support.builders import spec_manifest
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.plan import Plan, SnapshotPlan
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.snapshots import (
    COPY_RATE,
    DEFAULT_INTERVAL_STEPS,
    DISK_RATE,
    HASH_RATE,
    MAX_COPY_SHARE,
    TARGET_COPY_SHARE,
    background_seconds,
    copy_seconds,
    is_snapshot_compatible,
    snapshot_cost_share,
    steps_between_saves,
)
from trainingjob_operator.core.validation.validate import validate_job

MIB = 2**20


def plan(spec: dict[str, Any], **snapshots: Any) -> Plan:
    checkpoint = {**spec["checkpoint"], "snapshots": snapshots}
    checked = validate_job("a", {**spec, "checkpoint": checkpoint})
    assert checked.plan, checked.problems
    return checked.plan


MESHES: dict[str, tuple[dict[str, Any], bool]] = {
    "slices hold copies": ({"ici": {"fsdp": -1}, "dcn": {"data": -1}}, True),
    "slices share the state": ({"ici": {"fsdp": -1}, "dcn": {"fsdp": -1}}, False),
    "slices share the moments": ({"ici": {"fsdp": -1}, "dcn": {"data": -1}, "shardOptimizerOverData": True}, False),
}


@pytest.mark.parametrize(("parallelism", "want"), MESHES.values(), ids=MESHES)
def test_a_snapshot_serves_where_the_state_is_cut_in_the_same_places(parallelism: dict[str, Any], want: bool) -> None:
    planned = plan(spec_manifest(parallelism=parallelism))

    assert is_snapshot_compatible(planned.spec, planned.layout(1), planned.layout(2)) is want
    assert is_snapshot_compatible(planned.spec, planned.layout(2), planned.layout(2))


def test_job_without_snapshots_has_no_interval() -> None:
    checked = validate_job("a", spec_manifest())

    assert checked.plan
    assert checked.plan.snapshots is None
    assert checked.plan.spec.checkpoint.snapshots is None


def test_interval_without_step_times_is_the_default() -> None:
    planned = plan(spec_manifest())

    assert planned.snapshots == SnapshotPlan(DEFAULT_INTERVAL_STEPS, MIB, is_interval_chosen=True)
    assert planned.spec.checkpoint.snapshots
    assert planned.spec.checkpoint.snapshots.every_steps == DEFAULT_INTERVAL_STEPS


def test_an_interval_that_is_written_stays() -> None:
    planned = plan(spec_manifest(), everySteps=3)

    assert planned.snapshots == SnapshotPlan(3, MIB)


@pytest.mark.parametrize(
    ("save", "share"), [(100_000, TARGET_COPY_SHARE), (2, MAX_COPY_SHARE)], ids=["rare saves", "frequent saves"]
)
def test_the_interval_is_the_shortest_within_the_share_at_every_size(save: int, share: float) -> None:
    spec = load_example("h100-2-nodes")["spec"]
    planned = plan({**spec, "checkpoint": {**spec["checkpoint"], "save": {"everySteps": save}}})

    assert planned.snapshots
    seconds = planned.snapshots.bytes_per_host / (8 * COPY_RATE)
    step = min(roofline.seconds for roofline in predict_sizes(planned).values())
    interval = planned.snapshots.every_steps
    assert seconds <= share * interval * step
    assert seconds > share * (interval - 1) * step


def test_the_interval_follows_from_what_training_changes() -> None:
    spec = load_example("fine-tune")["spec"]
    tuned = plan(spec)

    assert tuned.snapshots
    layout, gigabyte = tuned.layout(1), 10**9
    assert tuned.snapshots.bytes_per_host > 16 * gigabyte, "a file has the frozen tensors, so that it is whole"
    copied = 12 * 30_670_848  # parameters and two moments of the adapters, in float32
    assert copy_seconds(tuned.spec, tuned.shape, layout) * 8 * COPY_RATE == pytest.approx(copied, rel=0.01)
    assert background_seconds(tuned.spec, layout) * HASH_RATE == pytest.approx(copied, rel=0.01)
    every = tuned.snapshots.every_steps
    assert snapshot_cost_share(tuned.spec, tuned.shape, layout, every, 1.0) < MAX_COPY_SHARE


def test_there_are_two_between_checkpoints_where_that_is_within_the_share() -> None:
    planned = plan(load_example("h100-2-nodes")["spec"])

    assert planned.snapshots
    assert planned.spec.checkpoint.save.every_steps == 250
    assert planned.snapshots.every_steps == 125


def warnings(base: str, **snapshots: Any) -> list[str]:
    spec = load_example(base)["spec"]
    checked = validate_job("a", {**spec, "checkpoint": {**spec["checkpoint"], "snapshots": snapshots}})
    assert checked.plan, checked.problems
    return [one.nearest[0] for one in checked.warnings if one.path == "spec.checkpoint.snapshots.everySteps"]


def test_an_interval_that_costs_more_than_its_share_is_warned_of_and_the_nearest_that_does_not_is_named() -> None:
    (nearest,) = warnings("h100-2-nodes", everySteps=10)

    assert 10 < int(nearest) < 250
    assert warnings("h100-2-nodes", everySteps=int(nearest)) == []
    assert warnings("h100-2-nodes", everySteps=int(nearest) - 1) == [nearest]


@pytest.mark.parametrize("base", ["h100-2-nodes", "elastic"])
def test_an_interval_that_the_plan_chose_is_never_warned_of(base: str) -> None:
    assert warnings(base) == []


def test_costly_interval_without_benefit_has_one_warning() -> None:
    spec = load_example("h100-2-nodes")["spec"]
    checkpoint = {**spec["checkpoint"], "save": {"everySteps": 50}, "snapshots": {"everySteps": 50}}
    checked = validate_job("a", {**spec, "checkpoint": checkpoint})

    (warning,) = [one for one in checked.warnings if one.path == "spec.checkpoint.snapshots.everySteps"]
    assert "snapshots save no steps" in warning.message
    assert warning.nearest == ()


def test_cost_of_snapshots_faster_than_their_hash_includes_the_wait() -> None:
    planned = plan(load_example("h100-2-nodes")["spec"])
    assert planned.snapshots
    copied, hashed = planned.snapshots.bytes_per_host / (8 * COPY_RATE), planned.snapshots.bytes_per_host / HASH_RATE

    def share(step_seconds: float) -> float:
        return snapshot_cost_share(planned.spec, planned.shape, planned.layout(1), 1, step_seconds)

    assert share(hashed) == pytest.approx(copied / hashed)
    assert share(hashed / 2) == pytest.approx((copied + hashed / 2) / (hashed / 2))


def test_snapshots_on_disk_wait_for_the_disk() -> None:
    spec = load_example("h100-2-nodes")["spec"]
    in_memory, on_disk = plan(spec, everySteps=100), plan(spec, everySteps=100, medium="disk")
    assert in_memory.snapshots
    assert on_disk.snapshots
    num_bytes = on_disk.snapshots.bytes_per_host

    def share(step_seconds: float) -> float:
        return snapshot_cost_share(on_disk.spec, on_disk.shape, on_disk.layout(1), 1, step_seconds)

    copied, written = num_bytes / (8 * COPY_RATE), num_bytes / DISK_RATE
    assert share(written) == pytest.approx(copied / written)
    assert share(written / 2) == pytest.approx((copied + written / 2) / (written / 2))
    assert (in_memory.snapshots.memory_bytes, in_memory.snapshots.volume_bytes) == (3 * num_bytes, 3 * num_bytes)
    assert (on_disk.snapshots.memory_bytes, on_disk.snapshots.volume_bytes) == (num_bytes, 3 * num_bytes)
    assert on_disk.spec.checkpoint.snapshots
    assert on_disk.spec.checkpoint.snapshots.medium == "disk"


INTERVALS = {
    "by steps alone": ({"everySteps": 500}, 2.0, 500),
    "by time, that comes first": ({"everySteps": 500, "every": "1m"}, 2.0, 30),
    "by steps, that come first": ({"everySteps": 20, "every": "1m"}, 2.0, 20),
    "a step takes longer": ({"everySteps": 20, "every": "1m"}, 90.0, 1),
}


@pytest.mark.parametrize(("save", "step", "want"), INTERVALS.values(), ids=INTERVALS.keys())
def test_steps_between_saves(save: dict[str, Any], step: float, want: int) -> None:
    spec = spec_manifest()
    spec["checkpoint"]["save"] = save

    assert steps_between_saves(TrainingJobSpec.model_validate(spec), step) == want


WHOLE = 12
"""Bytes of a parameter with its two moments, all in float32."""
LARGE = {
    "vocabSize": 512,
    "embedDim": 512,
    "mlpDim": 2048,
    "numLayers": 4,
    "numHeads": 8,
    "numKvHeads": 8,
    "headDim": 64,
}

SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "replicas on one host are copied once": ({"ici": {"data": 4}}, {}, WHOLE),
    "a host has its share of what is split over the slice": ({"ici": {"fsdp": 4}}, {}, WHOLE / 2),
    "split over slices too": ({"ici": {"fsdp": 4}, "dcn": {"fsdp": 2}}, {}, WHOLE / 4),
    "moments split over data": ({"ici": {"data": 4}, "shardOptimizerOverData": True}, {}, 4 + 8 / 4),
    "parameters in half precision": ({"ici": {"data": 4}}, {"params": "bfloat16"}, 10),
}


@pytest.mark.parametrize(("parallelism", "precision", "want"), SHAPES.values(), ids=SHAPES.keys())
def test_bytes_on_a_host(parallelism: dict[str, Any], precision: dict[str, Any], want: float) -> None:
    slices = {"accelerator": "cpu", "topology": "2x2", "count": 2}
    sections = {"slices": slices, "model": LARGE, "parallelism": parallelism, "precision": precision}
    planned = plan(spec_manifest(**sections))

    assert planned.snapshots
    assert planned.snapshots.bytes_per_host / planned.num_parameters == pytest.approx(want, rel=0.06)
    assert planned.snapshots.memory_bytes == 3 * planned.snapshots.bytes_per_host
