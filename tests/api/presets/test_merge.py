"""The values of a preset in a model section, below what the job itself sets."""

from typing import Any

import pytest

from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.presets.merge import merge_preset
from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.schema import spec_schema
from trainingjob_api.spec.model import Model

TINY = Preset(
    name="tiny",
    source="",
    parameters=0,
    context=0,
    model={
        "numLayers": 4,
        "rope": {"theta": 1e6, "scaling": {"type": "llama3", "factor": 8, "llama3": {"lowFrequency": 2}}},
        "layers": {"pattern": [{"count": 3}, {"attention": "full"}]},
    },
)
SPEC: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "2x2"},
    "data": {"train": [{"name": "text", "path": "/shared/text"}]},
    "training": {"steps": 10, "globalBatchSize": 8, "sequenceLength": 64},
    "optimizer": {"learningRate": 0.001},
    "checkpoint": {"uri": "/shared/run"},
}
OVERRIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, TINY.model),
    "a number": ({"numLayers": 2}, TINY.model | {"numLayers": 2}),
    "a new field": ({"norm": {"epsilon": 1e-3}}, TINY.model | {"norm": {"epsilon": 1e-3}}),
    "a field of an object": (
        {"rope": {"theta": 10}},
        TINY.model | {"rope": TINY.model["rope"] | {"theta": 10}},
    ),
    "the same type": (
        {"rope": {"scaling": {"type": "llama3", "factor": 2}}},
        TINY.model | {"rope": {"theta": 1e6, "scaling": TINY.model["rope"]["scaling"] | {"factor": 2}}},
    ),
    "another type": (
        {"rope": {"scaling": {"type": "linear", "factor": 2}}},
        TINY.model | {"rope": {"theta": 1e6, "scaling": {"type": "linear", "factor": 2}}},
    ),
    "a list": (
        {"layers": {"pattern": [{"count": 1}]}},
        TINY.model | {"layers": {"pattern": [{"count": 1}]}},
    ),
    "text in place of an object": ({"rope": "llama3"}, TINY.model | {"rope": "llama3"}),
}


@pytest.mark.parametrize(("overrides", "want"), OVERRIDES.values(), ids=OVERRIDES)
def test_what_a_job_sets_replaces_the_values_of_its_preset(overrides: dict[str, Any], want: dict[str, Any]) -> None:
    section = {"preset": "tiny", **overrides}

    assert merge_preset(section, {"tiny": TINY}) == ({"preset": "tiny", **want}, None)


@pytest.mark.parametrize("section", [None, [], "tiny", {}, {"preset": 5}, {"preset": None, "numLayers": 2}])
def test_a_section_without_a_preset_is_unchanged(section: Any) -> None:
    assert merge_preset(section, {"tiny": TINY}) == (section, None)


def test_a_preset_alone_is_a_model() -> None:
    parsed = parse_spec(SPEC | {"model": {"preset": "qwen3-8b", "numLayers": 2}})

    assert parsed.problems == ()
    assert parsed.spec
    whole = Model.model_validate(PRESETS["qwen3-8b"].model | {"numLayers": 2, "preset": "qwen3-8b"})
    assert parsed.spec.model == whole


def test_an_unknown_preset_is_reported_with_all_problems_outside_of_the_model() -> None:
    parsed = parse_spec(SPEC | {"model": {"preset": "qwen3_8b"}, "training": SPEC["training"] | {"steps": 0}})

    assert [str(problem) for problem in parsed.problems] == [
        (
            f"spec.model.preset: qwen3_8b is not a preset. `trainingjob presets` lists all {len(PRESETS)}. "
            "Nearest legal values: qwen3-8b, qwen3-4b, qwen3-32b."
        ),
        "spec.training.steps: 0 must be at least 1. Nearest legal value: 1.",
    ]
    assert not parsed.is_as_written(["model.numLayers"])
    assert parsed.is_as_written(["optimizer"])


def test_a_long_name_is_shortened() -> None:
    (problem,) = parse_spec(SPEC | {"model": {"preset": "x" * 2000}}).problems

    assert problem.message.startswith(f"{'x' * 60}... is not a preset.")


def test_the_api_server_requires_dimensions_only_without_a_preset() -> None:
    required = [field.alias for field in Model.model_fields.values() if field.is_required()]

    assert "required" not in spec_schema()["properties"]["model"]
    assert [rule["rule"] for rule in SPEC_RULES["model",]][: len(required)] == [
        f"has(self.preset) || has(self.{name})" for name in required
    ]
