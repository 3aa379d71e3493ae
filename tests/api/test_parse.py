"""Parsing: each kind of mistake has its own message, and no input raises an unexpected error."""

import copy
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.patience import at_once
from trainingjob_api.fields import find_spec_field, format_path
from trainingjob_api.parse.parse_messages import describe_fields, format_value, guess_field, to_problem
from trainingjob_api.parse.parser import MAX_BYTES, MAX_ERRORS, parse_spec
from trainingjob_api.parse.renamed_fields import RENAMED_FIELDS
from trainingjob_api.sample import SAMPLE


def set_at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets a value at a dotted path; numbers are places in lists."""

    def change(spec: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = spec
        for part in parents:
            place = place[int(part)] if part.isdigit() else place[part]
        place[int(last) if last.isdigit() else last] = value

    return change


def messages_of(change: Callable[[dict[str, Any]], None]) -> list[str]:
    spec = copy.deepcopy(SAMPLE)
    change(spec)
    return [str(problem) for problem in parse_spec(spec).problems]


HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HABITS: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "habits.yaml").read_text())
MISTAKES: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "mistakes.yaml").read_text())


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES.keys())
def test_parser_describes_each_mistake(case: dict[str, Any]) -> None:
    assert messages_of(set_at(case["path"], case["value"])) == case["told"]


@pytest.mark.parametrize("case", HABITS.values(), ids=HABITS.keys())
def test_a_habit_of_another_tool_is_answered(case: dict[str, Any]) -> None:
    assert messages_of(set_at(case["path"], case["value"])) == case["told"]


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_mended_so_that_the_rest_can_be_judged(case: dict[str, Any]) -> None:
    spec = copy.deepcopy(SAMPLE)
    del spec["program"]  # with it, no rule reads the sections of the trainer
    set_at(case["path"], case["value"])(spec)
    parsed = parse_spec(spec)

    assert parsed.spec is not None
    section, *_ = case["path"].split(".")
    assert not parsed.is_as_written([section])
    assert parsed.is_as_written(["precision.params"])


@pytest.mark.parametrize(("old", "new"), RENAMED_FIELDS.items(), ids=str)
def test_old_field_name_suggests_the_new_one(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    *parents, last = old
    (problem,) = parse_spec(_with_old_name(old, new[0])).problems
    place = problem.path.rpartition(".")[0]

    assert problem.path.replace("[0]", "") == format_path(old)
    assert problem.nearest == new
    verb = "moved" if "." in new[0] else "was renamed"
    assert problem.message.endswith(f"{last} is not a field of {place}. It {verb} to {' or '.join(new)}.")
    targets = [(*parents, *one.split(".")) for one in new]
    assert guess_field(old) == targets[0]
    assert [one for one in targets if find_spec_field(one) is None] == []
    page = (ROOT / "docs/api-versions.md").read_text()
    assert f"| `{format_path(old)}` | `{format_path(targets[0])}` |" in page


def test_no_field_was_renamed_after_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    page = (ROOT / "docs/api-versions.md").read_text()
    rows = re.findall(r"^\| `spec\.[^|]*\|[^|]*\| (\d+)\.(\d+) \|", page, re.MULTILINE)

    assert len(rows) >= len(RENAMED_FIELDS)
    assert [row for row in rows if tuple(map(int, row)) > tuple(map(int, version.split(".")))] == []


def _with_old_name(old: tuple[str, ...], new: str) -> dict[str, Any]:
    spec = copy.deepcopy(SAMPLE)
    *parents, last = old
    parent = _step_into(spec, parents)
    *objects, name = new.split(".")
    place = _step_into(parent, objects)
    parent[last] = place.pop(name)
    return spec


def _step_into(value: Any, path: list[str]) -> Any:
    """Return the value at a path, in the first item of each list."""
    for part in path:
        value = value[part]
        value = value[0] if isinstance(value, list) else value
    return value


GOOD: dict[str, tuple[str, Any]] = {
    "a whole number for a number": ("optimizer.learningRate", 1),
    "a null for a default": ("elastic", None),
    "a null for what may be left out": ("runtime.image", None),
    "a number for an amount": ("runtime.resources.cpu", 4),
    "an empty list": ("evaluation", []),
}


@pytest.mark.parametrize(("path", "value"), GOOD.values(), ids=GOOD.keys())
def test_this_is_no_mistake(path: str, value: Any) -> None:
    assert messages_of(set_at(path, value)) == []


def test_an_amount_without_quotes_is_the_same_amount() -> None:
    spec = copy.deepcopy(SAMPLE)
    set_at("runtime.resources.cpu", 4)(spec)
    parsed = parse_spec(spec).spec

    assert parsed
    assert parsed.runtime.resources.cpu == "4"


def deep(levels: int) -> dict[str, Any]:
    return {"a": deep(levels - 1)} if levels else {}


def circular() -> dict[str, Any]:
    spec: dict[str, Any] = {}
    spec["spec"] = spec
    return spec


NONSENSE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "spec: null must be an object of fields."),
    "text": ("llama", "spec: llama must be an object of fields."),
    "a list": ([{}], "spec: list must be an object of fields."),
    "an object of Python": (object(), "spec: object must be an object of fields."),
    "a deep one": (deep(40), "spec: is nested more than 16 levels deep."),
    "an endless one": (circular(), "spec: is nested more than 16 levels deep."),
    "three megabytes": (
        {"model": "x" * 3_000_000},
        f"spec: has 3,000,012 bytes as JSON, but must have at most {MAX_BYTES:,}.",
    ),
}


@pytest.mark.parametrize(("raw", "want"), NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_one_problem(raw: Any, want: str) -> None:
    parsed = parse_spec(raw)

    assert [str(problem) for problem in parsed.problems] == [want]
    assert parsed.spec is None


@pytest.mark.parametrize(("value", "shown"), [(10**5000, "Infinity"), (-(10**5000), "-Infinity")], ids=["+", "-"])
def test_a_number_too_long_to_write_out_is_answered(value: int, shown: str) -> None:
    assert messages_of(set_at("suspend", value)) == [f"spec.suspend: {shown} must be true or false."]


def test_empty_spec_reports_every_missing_section() -> None:
    paths = [problem.path for problem in parse_spec({}).problems]

    assert paths == [f"spec.{name}" for name in ("checkpoint", "data", "model", "optimizer", "slices", "training")]


def test_keys_and_values_of_other_languages_are_answered() -> None:
    superscript, arabic = {"\u00b2": {"x": 1}}, {"\u0662": {"x": 1}}  # digits, of which `int` reads only the second
    raw = {1: "x", "\ud800": b"\x00", "model": {None: 1} | superscript, "data": {"train": ({"name": "\ud83d"},)}}
    problems = parse_spec(raw | superscript | arabic).problems
    paths = {problem.path for problem in problems}

    assert {"spec.1", "spec.?", "spec.model.None", "spec.data.train[0].name"} <= paths
    assert {"spec.\u00b2", "spec.\u0662", "spec.model.\u00b2"} <= paths


@pytest.mark.parametrize("digit", ["\u00b2", "\u0662", "7"])
def test_a_path_with_any_digit_has_fields_beside_it(digit: str) -> None:
    assert describe_fields(f"spec.{digit}.x") == " It has ."


FLOODS: dict[str, Any] = {
    "unknown fields": {f"unknown{number}": number for number in range(10_000)},
    "unknown fields of a section": {"model": {f"heads{number}": number for number in range(12_000)}},
    "items that lack everything": {"data": {"train": [{}] * 60_000}},
    "items of a wrong type": {"data": {"train": list(range(30_000))}},
    "keys that are none": {"scheduling": {"nodeSelector": {f"%{number}": "%" for number in range(15_000)}}},
}


@pytest.mark.parametrize("raw", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_of_mistakes_is_cut(raw: Any) -> None:
    with at_once():
        parsed = parse_spec(raw)

    assert len(parsed.problems) == 64
    assert parsed.spec is None  # mending each mistake would take far longer than telling some


def test_many_mistakes_are_still_mended() -> None:
    parsed = parse_spec(copy.deepcopy(SAMPLE) | {f"unknown{number}": number for number in range(MAX_ERRORS)})

    assert len(parsed.problems) == 64
    assert parsed.spec is not None


def test_broken_items_of_a_broken_list_are_mended_together() -> None:
    raw = copy.deepcopy(SAMPLE)
    raw["evaluation"] = [{"name": "A"}, "x", {"name": "a", "path": "b"}]
    raw["runtime"]["env"] = [{}, {"name": 1}, 7]
    parsed = parse_spec(raw)

    assert parsed.spec is not None
    assert len(parsed.problems) == 2 + 1 + 2 + 1 + 1 + 1


def test_the_sample_is_complete_and_parses() -> None:
    parsed = parse_spec(SAMPLE)

    assert parsed.problems == ()
    assert parsed.spec is not None
    assert parsed.spec.model_dump(by_alias=True, mode="json") == SAMPLE


def test_unknown_pydantic_error_keeps_its_message() -> None:
    error = {"type": "new_kind", "loc": ("training", "steps"), "input": 3, "msg": "Input should be prime"}

    assert str(to_problem(error)) == "spec.training.steps: 3 is not allowed: Input should be prime."


SHOWN: dict[str, tuple[Any, str]] = {
    "a plain word": ("tpu-v5p", "tpu-v5p"),
    "words": ("a b", '"a b"'),
    "nothing": ("", '""'),
    "an object": ({"a": 1}, '{"a": 1}'),
    "long text": ("x y" * 100, '"' + ("x y" * 19)[:56] + "..."),
}


@pytest.mark.parametrize(("value", "want"), SHOWN.values(), ids=SHOWN.keys())
def test_values_are_shown_short(value: Any, want: str) -> None:
    assert format_value(value) == want


SECRET_TEXT = "hf_NeverShown"
SECRETS: dict[str, Any] = {
    "text in place of the reference": SECRET_TEXT,
    "text in place of the key": {"secretKeyRef": SECRET_TEXT},
    "a value as in a pod": {"value": SECRET_TEXT},
    "a value beside the reference": {"secretKeyRef": {"name": "keys", "key": "token", "value": SECRET_TEXT}},
    "a list": [SECRET_TEXT],
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("place", ["metrics.wandb.apiKey", "checkpoint.initializeFrom.huggingFace.token"])
def test_no_message_shows_what_stands_in_place_of_a_secret(place: str, secret: Any) -> None:
    spec: Any = secret
    for name in reversed(place.split(".")):
        spec = {name: spec}

    problems = [one for one in parse_spec(spec).problems if place in one.path]

    assert problems
    assert not [one for one in problems if SECRET_TEXT in repr(one)]
