"""Numbers of steps that may be shares of `training.steps`."""

import json
from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.schema import spec_schema
from trainingjob_api.shares import MAX_STEPS, format_share, normalize_share, resolve_steps
from trainingjob_api.spec.job import TrainingJobSpec

RESOLVED: dict[str, tuple[int | str, int, int]] = {
    "a number": (15, 100, 15),
    "a share": ("1%", 200_000, 2000),
    "a share that is no whole number": ("3%", 150, 4),
    "less than a step": ("1%", 99, 0),
    "no share": ("0%", 100, 0),
    "the largest share of one step": ("99%", 1, 0),
    "the largest share of the most steps": ("99%", MAX_STEPS, 99_000_000),
    "an odd number of steps": ("7%", 99_999_999, 6_999_999),
}


@pytest.mark.parametrize(("count", "num_steps", "want"), RESOLVED.values(), ids=RESOLVED.keys())
def test_a_count_is_resolved(count: int | str, num_steps: int, want: int) -> None:
    assert resolve_steps(count, num_steps) == want


def test_a_share_is_always_less_than_the_training() -> None:
    assert [steps for steps in (1, 2, 99, 100, 101, 12_345) if resolve_steps("99%", steps) >= steps] == []


def parse(warmup: Any) -> TrainingJobSpec:
    parsed = parse_spec(spec_manifest(schedule={"warmup": warmup}))
    assert parsed.problems == ()
    assert parsed.spec
    return parsed.spec


@pytest.mark.parametrize(("warmup", "want"), [(0, 0), (7, 7), (7.0, 7), ("0%", "0%"), ("10%", "10%"), ("99%", "99%")])
def test_spec_preserves_the_written_count(warmup: Any, want: int | str) -> None:
    spec = parse(warmup)

    assert spec.schedule.warmup == want
    assert json.loads(spec.model_dump_json(by_alias=True))["schedule"]["warmup"] == want
    assert spec.model_dump(mode="json", by_alias=True)["schedule"]["warmup"] == want


def test_a_share_follows_an_edit_of_the_steps() -> None:
    schedule = parse("5%").schedule

    assert [resolve_steps(schedule.warmup, steps) for steps in (100, 2000)] == [5, 100]


def test_the_api_server_bounds_both_forms() -> None:
    node = spec_schema()["properties"]["schedule"]["properties"]["warmup"]

    assert {key: node[key] for key in node if key != "description"} == {
        "pattern": "^[1-9]?[0-9]%$",
        "minimum": 0,
        "maximum": MAX_STEPS,
        "x-kubernetes-int-or-string": True,
        "default": 0,
    }


WRITTEN = {"1 %": "1%", "0.5%": "1%", "12.5 percent": "13%", "100%": "99%", "007%": "7%", "many": "many", "5": "5"}


@pytest.mark.parametrize(("text", "want"), WRITTEN.items())
def test_a_share_in_another_form(text: str, want: str) -> None:
    assert normalize_share(text) == want


def test_a_ratio_is_rounded_up_to_a_legal_share() -> None:
    assert [format_share(ratio) for ratio in (0.07, 0.001, 0.5, 1.0)] == ["7%", "1%", "50%", "99%"]
