"""Each preset is a model that validation accepts, without warnings about its options."""

from typing import Any

import pytest

from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.core.validation.validate import validate_job

SPEC: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
    "data": {"train": [{"name": "text", "path": "python:"}]},
    "training": {"steps": 10, "globalBatchSize": 1, "sequenceLength": 64},
    "optimizer": {"learningRate": 0.001},
    "checkpoint": {"uri": "/shared/run"},
    "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
}

CHOICES_OF_JOBS = {"spec.model.experts.groupLength", "spec.model.experts.dispatch"}
"""They change what training costs, not what a model computes, and published presets do not change."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid(name: str) -> None:
    training = SPEC["training"] | {"sequenceLength": min(PRESETS[name].context, 16384)}

    checked = validate_job("job", SPEC | {"model": {"preset": name}, "training": training})

    assert checked.problems == ()
    assert {one.path for one in checked.warnings if one.path.startswith("spec.model")} <= CHOICES_OF_JOBS
