"""How many slices may die while the others' memory holds the whole state."""

from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_operator.core.planner.redundancy import max_losable_slices
from trainingjob_operator.core.validation.validate import validate_job

CASES: dict[str, tuple[int, dict[str, Any], int]] = {
    "replicas": (4, {"dcn": {"data": 4}}, 3),
    "one slice": (1, {}, 0),
    "parameters split over slices": (4, {"dcn": {"fsdp": 4}}, 0),
    "two copies of a state on two slices each": (4, {"dcn": {"data": 2, "fsdp": 2}}, 1),
    "stages on slices": (2, {"dcn": {"stage": 2}}, 0),
    "the optimizer's state is split over data": (4, {"dcn": {"data": 4}, "shardOptimizerOverData": True}, 0),
    "an axis that no parameter is split by": (2, {"dcn": {"fsdp": 2}, "ici": {"data": 4}, "rules": {"embed": []}}, 1),
}


@pytest.mark.parametrize(("num_slices", "parallelism", "want"), CASES.values(), ids=CASES.keys())
def test_max_losable_slices(num_slices: int, parallelism: dict[str, Any], want: int) -> None:
    slices = {"accelerator": "cpu", "topology": "2x2", "count": num_slices}
    training = {"steps": 10, "globalBatchSize": 32, "sequenceLength": 32}
    checked = validate_job("a", spec_manifest(slices=slices, parallelism=parallelism, training=training))
    assert checked.plan, checked.problems

    assert max_losable_slices(checked.plan.spec, checked.plan.layout(num_slices)) == want
