"""The memory of evaluations: the sequences of a device at once, and its bytes for them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.trainer.tiny import make_layout
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.evaluation_memory import (
    count_evaluation_bytes,
    list_smaller_limits,
    plan_evaluations,
)
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import plan_job

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]
LAYOUT = make_layout(rows_per_shard=4, accumulation=3)
DPO = {"objective": {"type": "dpo"}}


def evaluation(**fields: Any) -> dict[str, Any]:
    return {"evaluation": [{"name": "held-out", "path": "/a", "everySteps": 10, **fields}]}


@pytest.mark.parametrize(
    ("limit", "per_example", "want"),
    [
        (None, 1, (4, 3)),
        (1, 1, (1, 12)),
        (4, 1, (4, 3)),
        (5, 1, (4, 3)),
        (11, 1, (6, 2)),
        (65536, 1, (12, 1)),
        (1, 2, (2, 6)),
        (5, 2, (6, 2)),
    ],
)
def test_the_largest_divisor_of_the_sequences_is_taken(
    limit: int | None, per_example: int, want: tuple[int, int]
) -> None:
    found = LAYOUT.for_evaluation(limit, per_example)

    assert (found.rows_per_shard, found.accumulation) == want


def test_smaller_limits_are_divisors(make_spec: MakeSpec) -> None:
    assert list(list_smaller_limits(make_spec({}), LAYOUT.for_evaluation(6))) == [4, 3, 2, 1]
    assert list(list_smaller_limits(make_spec(DPO), LAYOUT)) == [1]


def test_a_plan_has_each_evaluation(make_spec: MakeSpec) -> None:
    spec = make_spec(evaluation(maxPerDeviceBatch=2))

    (plan,) = plan_evaluations(spec, SizePlan(1, LAYOUT, None))

    assert (plan.name, plan.rows_per_shard, plan.accumulation) == ("held-out", 2, 6)
    assert plan.memory_bytes == count_evaluation_bytes(spec, LAYOUT.for_evaluation(2))
    assert plan_evaluations(spec, SizePlan(1, None, None)) == []


def test_memory_is_the_state_and_what_grows_with_the_sequences(make_spec: MakeSpec) -> None:
    spec, averaged = make_spec({}), make_spec({"optimizer.average": {}})
    device = estimate_device_memory(spec, combine_degrees(LAYOUT.ici, LAYOUT.dcn))
    one, two, three = (count_evaluation_bytes(spec, LAYOUT.for_evaluation(number)) for number in (1, 2, 3))

    assert one > device.params + device.optimizer
    assert three - two == two - one > 0
    more = estimate_device_memory(averaged, combine_degrees(LAYOUT.ici, LAYOUT.dcn)).optimizer - device.optimizer
    assert count_evaluation_bytes(averaged, LAYOUT.for_evaluation(1)) == one + more + device.params


@pytest.mark.parametrize("changes", [{}, DPO])
def test_an_evaluation_needs_less_than_a_training_step(changes: dict[str, Any], make_spec: MakeSpec) -> None:
    plan = plan_job(make_spec(changes))

    for size in plan.sizes:
        assert size.layout
        assert size.memory
        assert count_evaluation_bytes(plan.spec, size.layout) < size.memory.total
