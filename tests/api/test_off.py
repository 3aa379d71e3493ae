"""No number or text of the spec means "off": presence of an object, or null, does."""

import json
import re

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.base import AXES
from trainingjob_api.fields import find_spec_field, nullable_fields
from trainingjob_api.parse.parser import dump_spec, parse_spec
from trainingjob_api.schema import spec_schema
from trainingjob_api.spec.job import TrainingJobSpec

type Node = dict[str, object]

_NOTHING = r"(?<![\w.%])(0|-1|zero|empty|\"\")(?![\w%]|\.\d)"
_SWITCHES = r"\b(disable|off|none|never|no limit|unlimited|turn|switch|infer)"
OFF = re.compile(rf"{_NOTHING}[^.]*{_SWITCHES}|\b(disable|off|unlimited)\w*\b[^.]*{_NOTHING}", re.IGNORECASE)
ZERO_IS_A_VALUE = {
    "model.experts.balance.lossWeight": "a weight",
    "model.experts.shared": "a number of experts",
    "training.seed": "a seed",
    "optimizer.weightDecay.rate": "a rate",
    "optimizer.adamw.beta1": "a mean of the newest gradient alone",
    "optimizer.adamw.beta2": "a mean of the newest gradient alone",
    "optimizer.lion.beta1": "an update of the gradient alone",
    "optimizer.lion.beta2": "a mean of the newest gradient alone",
    "schedule.warmup": "a number of steps",
    "schedule.finalFraction": "a share",
    "elastic.maxRestarts": "a number of restarts",
    "scheduling.tolerations.tolerationSeconds": "a time, as in Kubernetes",
    "ttlSecondsAfterFinished": "a time, as in Kubernetes",
}
"""Numbers whose 0 has the meaning of its unit, each with that meaning."""
EMPTY_IS_A_VALUE = {
    "scheduling.nodeSelector": "a label without value, as in Kubernetes",
    "scheduling.tolerations.value": "a taint without value, as in Kubernetes",
    "runtime.env.value": "a variable without value, as in Kubernetes",
}
"""Texts that may be empty, each with the meaning of an empty one."""


def walk(path: str, node: Node) -> list[tuple[str, Node]]:
    """Return all nodes of a schema with the path of their field."""
    properties, below = node.get("properties"), [node.get("items"), node.get("additionalProperties")]
    found = [(path, node)]
    if isinstance(properties, dict):
        found += [one for name, child in properties.items() for one in walk(f"{path}.{name}".lstrip("."), child)]
    return found + [one for child in below if isinstance(child, dict) for one in walk(path, child)]


NODES = walk("", spec_schema())


def test_the_expression_finds_what_it_should() -> None:
    bad = ("0 disables it.", "Use -1 to turn it off.", "Steps. Empty: no limit.", "It is off with 0.", "-1 infers it.")

    assert [text for text in bad if not OFF.search(text)] == []
    assert not OFF.search("Reads 10 files. Without it, learning is off.")


def test_no_description_gives_a_number_or_an_empty_text_the_meaning_of_off() -> None:
    assert [path for path, node in NODES if OFF.search(str(node.get("description", "")))] == []


def test_only_the_degrees_of_a_mesh_may_be_negative() -> None:
    negative = {path for path, node in NODES if isinstance(least := node.get("minimum"), int | float) and least < 0}

    assert negative == {f"parallelism.{network}.{axis}" for network in ("ici", "dcn") for axis in AXES}


def test_zero_is_legal_only_where_it_is_a_value() -> None:
    legal = {path for path, node in NODES if node.get("minimum") == 0 and not node.get("exclusiveMinimum")}

    assert legal == set(ZERO_IS_A_VALUE)


def test_an_empty_text_is_legal_only_where_it_is_a_value() -> None:
    texts = [(path, node) for path, node in NODES if node.get("type") == "string" and "enum" not in node]
    legal = {path for path, node in texts if not node.get("minLength") and re.search(str(node.get("pattern", "")), "")}

    assert legal == set(EMPTY_IS_A_VALUE)


def test_null_is_a_value_where_the_schema_says_so() -> None:
    nullable = {tuple(path.split(".")) for path, node in NODES if node.get("nullable")}

    assert nullable == nullable_fields() == {("optimizer", "clipNorm")}
    assert all((field := find_spec_field(path)) and field.is_nullable for path in nullable)


@pytest.mark.parametrize("clip", [0, -1, -0.5])
def test_a_limit_of_zero_is_answered_with_null(clip: float) -> None:
    (problem,) = parse_spec(spec_manifest(optimizer={"learningRate": 0.1, "clipNorm": clip})).problems

    assert problem.nearest == ("null",)
    assert str(problem).startswith(f"spec.optimizer.clipNorm: {clip} must be greater than 0, or null for no limit.")


@pytest.mark.parametrize(("written", "want"), [({"clipNorm": None}, None), ({}, 1.0), ({"clipNorm": 2}, 2.0)], ids=str)
def test_null_survives_where_it_is_a_value(written: dict[str, float | None], want: float | None) -> None:
    parsed = parse_spec(spec_manifest(optimizer={"learningRate": 0.1, **written})).spec

    assert parsed
    assert parsed.optimizer.clip_norm == want
    again = parse_spec(dump_spec(parsed))
    assert (again.spec, again.problems) == (parsed, ())
    small = parsed.model_dump_json(by_alias=True, exclude_defaults=True)  # as pods read it
    assert TrainingJobSpec.model_validate_json(small) == parsed
    assert ("clipNorm" in json.loads(small)["optimizer"]) == (want != 1.0)
