"""Every field with a value just outside of its schema: reported at its path, and valid after the suggestion."""

import copy
from typing import Any

import pytest

from tests.corpus.cases import Job, set_at
from tests.corpus.suggestions import follow
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.sample import SAMPLE
from trainingjob_api.schema import spec_schema

STEP = {"integer": 1, "number": 1e-3}
NOT_A = {"integer": "many", "number": "many", "boolean": "maybe", "array": 7, "object": 7, "string": {}}


def walk(path: str, node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the schema of every field by its path; the path of a list's items has index 0."""
    found = {path: node}
    for name, child in node.get("properties", {}).items():
        found |= walk(f"{path}.{name}", child)
    return found | (walk(f"{path}[0]", node["items"]) if "items" in node else {})


FIELDS = {path: node for path, node in walk("spec", spec_schema()).items() if path != "spec"}
BOUNDED = {path: node for path, node in FIELDS.items() if node.get("type") in STEP}
TYPED = {path: node["type"] for path, node in FIELDS.items() if "type" in node}
OBJECTS = [path for path, node in FIELDS.items() if "properties" in node]


def problems_of(job: Job) -> list[str]:
    return [problem.path for problem in parse_spec(job["spec"]).problems]


def sample(path: str, value: Any) -> Job:
    """Return a job with every field set, and another value at a path."""
    job = {"spec": copy.deepcopy(SAMPLE)}
    set_at(job, path, value)
    return job


@pytest.mark.parametrize("path", BOUNDED)
@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_a_number_out_of_its_bounds(path: str, bound: str) -> None:
    node = BOUNDED[path]
    is_open = node.get(f"exclusive{bound.capitalize()}", False)
    outside = -STEP[node["type"]] if bound == "minimum" else STEP[node["type"]]
    job = sample(path, node[bound] + (0 if is_open else outside))
    (problem,) = parse_spec(job["spec"]).problems

    assert problem.path == path
    assert problem.nearest or is_open
    if problem.nearest:
        assert problems_of(follow(job, problem)) == []
    if not is_open:
        assert problems_of(sample(path, node[bound])) == []


@pytest.mark.parametrize("path", TYPED)
def test_a_value_of_another_type(path: str) -> None:
    assert problems_of(sample(path, NOT_A[TYPED[path]])) == [path]


@pytest.mark.parametrize("path", OBJECTS)
def test_a_field_that_no_object_has(path: str) -> None:
    assert problems_of(sample(f"{path}.xyzzy", 1)) == [f"{path}.xyzzy"]


@pytest.mark.parametrize("path", [path for path, node in FIELDS.items() if "enum" in node])
def test_a_choice_in_capitals(path: str) -> None:
    job = sample(path, FIELDS[path]["enum"][0].swapcase())
    (problem,) = parse_spec(job["spec"]).problems

    assert problem.path == path
    assert problems_of(follow(job, problem)) == []
