"""Every example: the valid ones are planned without a warning, the invalid ones answered with all their problems."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainingjob_api.problem import summarise
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLES = ROOT / "crds/examples"
VALID = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
INVALID = sorted(path.stem for path in EXAMPLES.glob("invalid/*.yaml"))


def check(path: Path) -> ValidationResult:
    manifest = yaml.safe_load(path.read_text())
    return validate_job(manifest["metadata"]["name"], manifest["spec"])


def describe(plan: Plan) -> dict[str, Any]:
    return {
        "parameters": plan.num_parameters,
        "tokensPerStep": plan.tokens_per_step,
        "shape": dataclasses.asdict(plan.shape),
        "sizes": [
            {
                "slices": size.num_slices,
                "why": size.invalid_reason,
                "layout": size.layout and size.layout.model_dump(by_alias=True),
                "memory": size.memory and {**dataclasses.asdict(size.memory), "total": size.memory.total},
            }
            for size in plan.sizes
        ],
    }


def test_there_are_examples() -> None:
    assert {"demo", "fixed", "elastic", "tpu-v5p-4-slices", "h100-2-nodes", "tpu-v5p-experts"} <= set(VALID)
    assert len(INVALID) == 5


@pytest.mark.parametrize("name", VALID)
def test_a_valid_example_is_planned(name: str, golden: Callable[[Path, str], None]) -> None:
    checked = check(EXAMPLES / f"{name}.yaml")

    assert checked.problems == ()
    assert checked.warnings == ()
    assert checked.plan
    assert all(size.is_valid for size in checked.plan.sizes)
    golden(ROOT / f"tests/golden/plans/{name}.json", json.dumps(describe(checked.plan), indent=2) + "\n")


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_example_is_answered_with_all_its_problems(name: str, golden: Callable[[Path, str], None]) -> None:
    checked = check(EXAMPLES / f"invalid/{name}.yaml")

    assert checked.plan is None
    golden(EXAMPLES / f"invalid/{name}.problems.txt", summarise(name, checked.problems) + "\n")


@pytest.mark.parametrize("name", VALID)
def test_run_config_survives_a_json_round_trip(name: str) -> None:
    plan = check(EXAMPLES / f"{name}.yaml").plan
    assert plan
    config = build_run_config(JobIdentity(name=name, namespace="research", uid="u"), plan)

    assert RunConfig.model_validate_json(config.model_dump_json(by_alias=True)) == config
    assert [layout.num_slices for layout in config.layouts] == list(plan.allowed_sizes)
