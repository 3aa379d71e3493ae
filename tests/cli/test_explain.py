"""`explain`: what a user sees about a field, and how a wrong name is answered."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app
from trainingjob_operator.cli.fields_page import render_page
from trainingjob_operator.core.validation.field_reference import list_fields

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/cli/explain"


def call(*args: str) -> SimpleNamespace:
    result = CliRunner().invoke(app, ["explain", *args], catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


SHOWN: dict[str, tuple[str, ...]] = {
    "spec": (),
    "number": ("spec.training.globalBatchSize",),
    "choice": ("schedule.type",),
    "items": ("scheduling.tolerations",),
    "tree": ("checkpoint", "--recursive"),
    "may-change": ("elastic",),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_field_is_explained(name: str, golden: Callable[[Path, str], None]) -> None:
    result = call(*SHOWN[name])

    assert (result.code, result.err) == (0, "")
    golden(GOLDEN / f"{name}.txt", result.out)


def test_every_field_can_be_explained() -> None:
    codes = {field.path: call(field.path).code for field in list_fields()}

    assert {path for path, code in codes.items() if code} == set()


def test_json_has_every_fact() -> None:
    (field,) = json.loads(call("training.steps", "--json").out)

    assert field["path"] == "spec.training.steps"
    assert (field["type"], field["unit"], field["required"]) == ("whole number", "optimizer steps", False)
    assert (
        "The warm-ups of `schedule` must be less than `training.steps`, `schedule.steps` and a cycle." in field["rules"]
    )


def test_json_of_all_fields_below() -> None:
    fields = json.loads(call("spec", "--json", "--recursive").out)

    assert [field["path"] for field in fields] == [field.path for field in list_fields()]


WRONG: dict[str, tuple[str, str]] = {
    "misspelt": (
        "spec.elastic.growCooldowm",
        "Error: spec.elastic.growCooldowm must be the path of exactly one field. Nearest: spec.elastic.growCooldown.\n",
    ),
    "ambiguous": (
        "everySteps",
        (
            "Error: everySteps must be the path of exactly one field. Nearest: spec.checkpoint.save.everySteps, "
            "spec.checkpoint.snapshots.everySteps, "
            "spec.protection.compareReplicas.everySteps, spec.evaluation[].everySteps.\n"
        ),
    ),
    "like no field": (
        "xyzzy",
        "Error: xyzzy must be the path of exactly one field. `trainingjob explain spec` lists the sections.\n",
    ),
}


@pytest.mark.parametrize(("text", "want"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_name_is_answered_with_the_nearest(text: str, want: str) -> None:
    result = call(text)

    assert (result.code, result.out, result.err) == (2, "", want)


def test_page_lists_every_field() -> None:
    page = render_page()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    sections = [line for line in page.splitlines() if line.startswith("## ")]

    # The spec itself has no line; a section is a heading instead.
    assert len(rows) + len(sections) == len(list_fields())


def test_the_page_in_the_documentation_is_that_of_the_models_and_rules() -> None:
    assert (ROOT / "docs/fields.md").read_text() == render_page(), "run: make generate"
