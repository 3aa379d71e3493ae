"""What a plan counts on: from storage when a pod is deleted, and from the devices of a job."""

import pytest

from tests.corpus.cases import judge, load_example
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import expect
from trainingjob_operator.core.planner.saving import measure_save, needed_rate


def plan(base: str) -> Plan:
    planned = judge(load_example(base)).plan
    assert planned
    return planned


def test_storage_must_take_what_a_host_writes_in_the_time_that_a_deleted_pod_has() -> None:
    planned = plan("h100-2-nodes")

    assert planned.snapshots
    assert measure_save(planned) == planned.snapshots.bytes_per_host
    assert needed_rate(planned) == pytest.approx(measure_save(planned) / 25)


def test_devices_should_do_what_the_hardware_table_says_and_have_what_the_largest_need_is() -> None:
    expected = expect(plan("tpu-v5p-4-slices"))

    assert (expected.flops, expected.link, expected.network) == (459e12, 6 * 100e9, 25e9)
    assert expected.memory == pytest.approx(76e9, rel=0.01)


def test_of_processors_only_their_memory_is_known() -> None:
    expected = expect(plan("fixed"))

    assert (expected.flops, expected.link, expected.network) == (0, 0, 0)
    assert expected.memory > 0
