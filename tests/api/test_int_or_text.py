"""Whole numbers that may also be a text."""

import json
from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.parse.parser import parse_spec


@pytest.mark.parametrize("count", [1, 100_000, "all"])
def test_spec_preserves_the_written_number_of_batches(count: Any) -> None:
    held_out = {"name": "text", "path": "/text", "everySteps": 1, "numBatches": count}
    spec = parse_spec(spec_manifest(evaluation=[held_out])).spec

    assert spec
    assert spec.evaluation[0].num_batches == count
    assert json.loads(spec.model_dump_json(by_alias=True))["evaluation"][0]["numBatches"] == count
