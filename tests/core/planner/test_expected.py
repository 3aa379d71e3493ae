"""Expectations of a plan: storage for a deleted pod, devices of the job, and the settings of its hosts."""

from dataclasses import replace
from typing import Any

import pytest

from tests.corpus.cases import judge, load_example
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.world import World
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import attach_program_config, expected_hardware
from trainingjob_operator.core.planner.snapshots import max_first_save_bytes, max_save_bytes, required_storage_rate


def plan(base: str, **sections: Any) -> Plan:
    job = load_example(base)
    job["spec"] |= sections
    checked = judge(job)
    assert checked.plan, checked.problems
    return checked.plan


def test_storage_must_take_what_a_host_writes_in_the_time_that_a_deleted_pod_has() -> None:
    planned = plan("h100-2-nodes")

    assert planned.snapshots
    assert max_save_bytes(planned) == max_first_save_bytes(planned) == planned.snapshots.bytes_per_host
    assert required_storage_rate(planned) == pytest.approx(max_save_bytes(planned) / 25)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_saves_after_the_first_lack_the_frozen_tensors(quantization: str | None) -> None:
    whole = plan("h100-2-nodes")
    checkpoint = load_example("h100-2-nodes")["spec"]["checkpoint"] | {"initializeFrom": {"uri": "/runs/base"}}
    lora = {"rank": 16, "alpha": 32, "targets": ["*.attention.query"], "baseQuantization": quantization}
    planned = plan("h100-2-nodes", checkpoint=checkpoint, lora=lora)

    trained = 3 * 4 * resolve_network(planned.spec).num_trainable_parameters  # with two moments, on one host
    frozen = max_first_save_bytes(planned) - max_save_bytes(planned)

    assert planned.snapshots
    assert max_first_save_bytes(planned) == planned.snapshots.bytes_per_host < max_save_bytes(whole)
    assert trained <= max_save_bytes(planned) < 1.1 * trained + 2**21
    assert frozen > 10 * max_save_bytes(planned)
    assert required_storage_rate(planned) == pytest.approx(max_save_bytes(planned) / 25)


def test_expected_rates_are_of_the_hardware_table_and_memory_is_the_largest_need() -> None:
    expected = expected_hardware(plan("tpu-v5p-4-slices"))

    assert (expected.flops, expected.link, expected.network) == (459e12, 6 * 100e9, 25e9)
    assert expected.memory == pytest.approx(65.5e9, rel=0.01)


GB = 1e9
SLICES = [
    ("tpu-v5e", "2x2", 2 * 50 * GB),
    ("tpu-v5e", "4x4", 2 * 50 * GB),
    ("tpu-v5e", "16x16", 4 * 50 * GB),
    ("tpu-v5p", "2x2x1", 2 * 100 * GB),
    ("tpu-v5p", "4x4x4", 6 * 100 * GB),
    ("tpu-v6e", "1x1", 4 * 100 * GB),  # no link is used, and 0 would leave the network between slices unchecked
    ("tpu-v7x", "4x4x4", 3 * 100 * GB),  # half of a chip's links
    ("nvidia-h100", "8", 18 * 25 * GB),
]


@pytest.mark.parametrize(("accelerator", "topology", "link"), SLICES)
def test_a_sum_over_a_slice_is_expected_to_use_the_links_that_the_slice_has(
    accelerator: str, topology: str, link: float
) -> None:
    shape = BUILTIN.find_shape(accelerator, topology)
    assert shape

    assert expected_hardware(replace(plan("fixed"), shape=shape)).link == link


def test_a_torus_needs_no_number_of_links() -> None:
    row = BUILTIN.accelerators_by_name["tpu-v5p"]
    slice_ = row.find_topology("2x2x1")
    assert slice_
    shape = replace(row, rates=replace(row.rates, num_links=0)).slice_shape(slice_, None)

    assert expected_hardware(replace(plan("fixed"), shape=shape)).link == 2 * 100 * GB


def test_of_processors_only_their_memory_is_known() -> None:
    expected = expected_hardware(plan("fixed"))

    assert (expected.flops, expected.link, expected.network) == (0, 0, 0)
    assert expected.memory > 0


@pytest.mark.parametrize(
    ("snapshots", "want"),
    [(None, (None, False)), ({}, (10, True)), ({"everySteps": 3}, (3, False))],
    ids=["none are taken", "the plan chooses the interval", "the job says it"],
)
def test_hosts_get_the_snapshot_interval_and_whether_they_may_extend_it(
    snapshots: dict[str, int] | None, want: tuple[int | None, bool]
) -> None:
    job = load_example("fixed")
    job["spec"]["checkpoint"] |= {"snapshots": snapshots} if snapshots is not None else {}
    planned = judge(job).plan
    assert planned

    reported = attach_program_config(
        World(generation=1, job_uid="uid", coordinator="10.0.0.1:1", members=()), planned, planned.sizes[0].layout
    )

    assert (reported.snapshots, reported.snapshots_may_stretch) == want
    assert (reported.layout, reported.remat) == (planned.sizes[0].layout, planned.spec.memory.remat)
    assert reported.offload == ()
