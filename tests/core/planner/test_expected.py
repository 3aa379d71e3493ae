"""What a plan expects of devices and of storage."""

from tests.corpus.cases import load_example
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import expect
from trainingjob_operator.core.planner.saving import measure_save, needed_rate
from trainingjob_operator.core.validation.validate import check_job

LEAVE_SECONDS = 25


def plan(name: str) -> Plan:
    checked = check_job("a", load_example(name)["spec"])
    assert checked.plan, checked.problems
    return checked.plan


def test_of_devices_that_the_table_knows_their_rates_and_the_largest_estimate_are_expected() -> None:
    planned = plan("tpu-v5p-4-slices")

    expected = expect(planned)

    rates = planned.shape.rates
    assert (expected.flops, expected.link) == (rates.bfloat16, rates.link * rates.num_links)
    assert expected.flops > 0
    assert expected.memory == max(size.memory.total for size in planned.sizes if size.memory)


def test_of_devices_that_nobody_knows_nothing_is_expected() -> None:
    expected = expect(plan("demo"))

    assert (expected.flops, expected.link, expected.network) == (0, 0, 0)


def test_storage_must_take_a_save_while_a_deleted_pod_may_still_run() -> None:
    planned = plan("demo")

    assert measure_save(planned) > 0
    assert needed_rate(planned) == measure_save(planned) / LEAVE_SECONDS
