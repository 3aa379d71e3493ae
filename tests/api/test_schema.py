"""The CRD: what `kubectl explain` teaches, what the API server bounds, and that the files are those of the models."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainingjob_api.cel import MAX_NAME, ROOT_RULES, SPEC_RULES
from trainingjob_api.fields import find_model, format_path
from trainingjob_api.schema import make_crd, spec_schema, status_schema
from trainingjob_api.wording import PATTERNS
from trainingjob_operator.core.names import MAX_LABEL, longest_pod_name

ROOT = Path(__file__).parent.parent.parent
type Node = dict[str, Any]


def walk(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(f"{path}.{name}", child)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from walk(f"{path}[]", node[key])


SPEC = dict(walk("spec", spec_schema()))
STATUS = dict(walk("status", status_schema()))
ALL = SPEC | STATUS
VERSION = make_crd()["spec"]["versions"][0]


def paths_where(nodes: dict[str, Node], holds: Any) -> list[str]:
    return [path for path, node in nodes.items() if holds(node)]


def test_every_field_is_described() -> None:
    undescribed = [path for path in ALL if not path.endswith("[]") and not ALL[path].get("description")]

    assert undescribed == []


def test_descriptions_are_sentences() -> None:
    assert paths_where(ALL, lambda node: not node.get("description", "x.").endswith((".", ":"))) == []


def test_the_schema_is_structural() -> None:
    text = json.dumps(make_crd())

    assert not [word for word in ("anyOf", "$ref", "$defs", "title", "null", "const") if f'"{word}"' in text]
    assert paths_where(ALL, lambda node: "type" not in node) == [
        "spec.runtime.resources.cpu",
        "spec.runtime.resources.memory",
    ]
    assert paths_where(ALL, lambda node: "additionalProperties" in node and "properties" in node) == []


def test_everything_of_the_spec_is_bounded() -> None:
    assert paths_where(SPEC, is_unbounded) == []


def test_lists_and_maps_of_the_status_are_bounded() -> None:
    lists = {path: node for path, node in STATUS.items() if node["type"] in ("array", "object")}

    assert paths_where(lists, is_unbounded) == []


def is_unbounded(node: Node) -> bool:
    match node.get("type"):
        case "string":
            return "maxLength" not in node and "enum" not in node
        case "array":
            return "maxItems" not in node
        case "integer" | "number":
            return "minimum" not in node or "maximum" not in node
        case "object":
            return "additionalProperties" in node and "maxProperties" not in node
    return False


def test_unknown_fields_of_the_spec_reach_the_webhook() -> None:
    objects = {path: node for path, node in ALL.items() if "properties" in node}

    assert {path for path, node in objects.items() if node.get("x-kubernetes-preserve-unknown-fields")} == {
        path for path in objects if path.startswith("spec")
    }


def test_defaults_are_written_into_the_spec_alone() -> None:
    assert paths_where(STATUS, lambda node: "default" in node) == []
    assert SPEC["spec.parallelism"]["default"]["ici"] == {"data": 1, "fsdp": -1, "tensor": 1}
    assert SPEC["spec.checkpoint.keep"]["default"] == {"last": 3}
    assert SPEC["spec.runtime.image"].keys() == {"type", "description", "minLength", "maxLength", "pattern"}


def test_limits_that_are_not_allowed_themselves_are_marked() -> None:
    beta = SPEC["spec.optimizer.beta1"]

    assert (beta["minimum"], beta["maximum"], beta["exclusiveMaximum"]) == (0, 1, True)


def test_single_choices_are_choices() -> None:
    assert SPEC["spec.optimizer.type"]["enum"] == ["adamw"]


def test_lists_say_how_they_merge() -> None:
    kinds = {path: node["x-kubernetes-list-type"] for path, node in ALL.items() if node.get("type") == "array"}

    assert {path for path, kind in kinds.items() if kind != "atomic"} == {"status.conditions"}
    assert STATUS["status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_every_pattern_has_words() -> None:
    patterns = {node["pattern"] for node in SPEC.values() if "pattern" in node}
    keys = set(spec_key_patterns())

    assert patterns | keys == set(PATTERNS)


def spec_key_patterns() -> Iterator[str]:
    selector = find_model(("scheduling",))
    assert selector
    yield from selector.model_json_schema()["properties"]["nodeSelector"]["patternProperties"]


def test_the_columns_of_kubectl_get() -> None:
    columns = VERSION["additionalPrinterColumns"]
    by_width = [[column["name"].upper() for column in columns if column.get("priority", 0) == wide] for wide in (0, 1)]

    assert by_width == [
        ["STATUS", "SLICES", "STEP", "LOSS", "GOODPUT", "RESTARTS", "AGE"],
        ["MESH", "TOKENS/S", "ETA", "CHECKPOINT", "REASON"],
    ]


def test_every_column_shows_a_field_that_is_there() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        path = column["jsonPath"].removeprefix(".")
        assert path == "metadata.creationTimestamp" or STATUS[path]["type"] == column["type"]


def test_the_crd_is_small() -> None:
    assert len(json.dumps(make_crd(), separators=(",", ":"))) < 250_000


def rules_of(path: tuple[str, ...]) -> list[Any]:
    node = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path:
        node = node["items"] if name == "[]" else node["properties"][name]
    return list(node.get("x-kubernetes-validations", []))


MUTABLE = {
    ("suspend",),
    ("ttlSecondsAfterFinished",),
    ("activeDeadlineSeconds",),
    ("elastic", "maxRestarts"),
    ("elastic", "growCooldown"),
}


def test_all_else_is_immutable() -> None:
    fixed = {path for path in SPEC_RULES if any(rule["rule"] == "self == oldSelf" for rule in rules_of(path))}
    sections = {(name,) for name in SPEC["spec"]["properties"]} - {("elastic",)}
    elastic = {("elastic", name) for name in SPEC["spec.elastic"]["properties"]}

    assert fixed == (sections | elastic) - MUTABLE


def test_what_is_immutable_is_always_there_to_be_compared() -> None:
    required = set(SPEC["spec"]["required"])
    always = {path for path, node in SPEC.items() if "default" in node} | {f"spec.{name}" for name in required}
    fixed = {path for path in SPEC_RULES if any(rule["rule"] == "self == oldSelf" for rule in rules_of(path))}

    assert {format_path(path) for path in fixed} <= always


def test_rules_speak_in_sentences() -> None:
    rules = [*ROOT_RULES, *(rule for path in SPEC_RULES for rule in rules_of(path))]

    assert len(rules) > len(SPEC_RULES)
    assert [rule for rule in rules if not rule["message"].endswith(".")] == []


def test_the_bound_of_the_name_is_that_of_the_smallest_job() -> None:
    assert len(longest_pod_name("n" * MAX_NAME, 1, 1)) == MAX_LABEL


def test_the_files_are_those_of_the_models() -> None:
    done = subprocess.run(
        [sys.executable, "crds/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert yaml.safe_load((ROOT / "crds/trainingjob.yaml").read_text()) == make_crd()


@pytest.mark.parametrize("path", [("nothing",), ("training", "steps", "more"), ("scheduling", "nodeSelector", "disk")])
def test_there_is_no_object_at_a_value(path: tuple[str, ...]) -> None:
    assert find_model(path) is None
