"""The CRD: what `kubectl explain` teaches, what the API server bounds, and that the files are those of the models."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.schema_edits import refuse
from trainingjob_api.cel import MAX_NAME, ROOT_RULES, SPEC_RULES
from trainingjob_api.fields import find_model, format_path, list_patterns
from trainingjob_api.schema import make_crd, spec_schema, status_schema
from trainingjob_api.spec.job import KEEP_REPLICAS
from trainingjob_api.spec.replaced_sections import REPLACED_SECTIONS
from trainingjob_operator.core.names import MAX_LABEL_LENGTH, longest_pod_name

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


FILLERS = {"the", "a", "an", "of", "its", "it", "this", "is", "in", "that", "number", "name"}


def words_of(text: str) -> set[str]:
    return {word.lower().rstrip("s") for word in re.findall(r"[A-Za-z][a-z]*", text)}


def teaches_nothing(path: str, description: str) -> bool:
    name = path.rpartition(".")[2]
    return len(description) < 12 or len(words_of(description) - FILLERS - words_of(name)) < 2


def test_every_description_teaches() -> None:
    fields = {path: node.get("description", "") for path, node in ALL.items() if not path.endswith("[]")}

    assert [path for path, description in fields.items() if teaches_nothing(path, description)] == []


def test_descriptions_are_sentences() -> None:
    assert paths_where(ALL, lambda node: not node.get("description", "x.").endswith((".", ":"))) == []


def find_sentences(description: str) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z0-9`])", description)


def test_descriptions_of_the_spec_are_two_short_sentences_at_most() -> None:
    sentences = {path: find_sentences(node.get("description", "")) for path, node in SPEC.items()}

    assert {path for path, found in sentences.items() if len(found) > 2} == set()
    assert {path for path, found in sentences.items() if any(len(one.split()) > 25 for one in found)} == set()
    opening = ("A ", "An ", "By ", "How ", "Of ", "The ", "What ", "When ", "Where ", "Whether ", "Which ", "Who ")
    assert {path for path, found in sentences.items() if found[0].startswith(opening)} == set()


def test_the_schema_is_structural() -> None:
    text = json.dumps(make_crd())

    assert not [word for word in ("anyOf", "$ref", "$defs", "title", "null", "const") if f'"{word}"' in text]
    assert paths_where(ALL, lambda node: "type" not in node) == [
        "spec.data.prepare.resources.cpu",
        "spec.data.prepare.resources.memory",
        "spec.schedule.warmup",
        "spec.schedule.wsd.decay",
        "spec.schedule.cycles.warmup",
        "spec.evaluation[].numBatches",
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
    ici = {"data": 1, "stage": 1, "fsdp": -1, "expert": 1, "context": 1, "tensor": 1}
    assert SPEC["spec.parallelism"]["default"]["ici"] == ici
    assert SPEC["spec.checkpoint.keep"]["default"] == {"last": 3}
    assert SPEC["spec.runtime.image"].keys() == {"type", "description", "minLength", "maxLength", "pattern"}


def test_limits_that_are_not_allowed_themselves_are_marked() -> None:
    beta = SPEC["spec.optimizer.adamw.beta1"]

    assert (beta["minimum"], beta["maximum"], beta["exclusiveMaximum"]) == (0, 1, True)


def test_limits_that_are_not_allowed_themselves_are_whole_numbers() -> None:
    """The API server cuts such a limit to a whole number where the value is one: 0 would not be less than 0.5."""
    limits = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}

    def is_cut(node: Node) -> bool:
        return any(node.get(mark) and node[limit] % 1 for mark, limit in limits.items())

    assert paths_where(ALL, is_cut) == []


def test_single_choices_are_choices() -> None:
    assert SPEC["spec.checkpoint.restore.broadcastFrom"]["enum"] == ["oneReplica"]


def test_lists_declare_their_merge_key() -> None:
    lists = {path: node for path, node in ALL.items() if node.get("type") == "array"}
    kinds = {
        kind: {path for path, node in lists.items() if node["x-kubernetes-list-type"] == kind}
        for kind in ("map", "set")
    }

    assert kinds == {
        "map": {"spec.evaluation", "spec.runtime.env", "spec.runtime.volumes", "status.conditions"},
        "set": {
            "spec.lora.targets",
            "spec.metrics.wandb.tags",
            "spec.model.attention.bias",
            "spec.objective.distill.teacher.model.attention.bias",
            "spec.optimizer.trainable",
            "spec.optimizer.learningRates[].tensors",
            "spec.precision.quantization.exclude",
            "spec.optimizer.weightDecay.exclude",
            "spec.runtime.imagePullSecrets",
            "spec.memory.save",
            "spec.memory.offload",
        },
    }


def test_lists_of_named_items_are_maps_but_where_their_order_counts() -> None:
    named = {path.removesuffix("[]") for path, node in SPEC.items() if "name" in node.get("required", ())}
    keyed = {path: node.get("x-kubernetes-list-map-keys") for path, node in SPEC.items() if path in named}

    assert keyed.pop("spec.data.train") is None
    assert {path: keys for path, keys in keyed.items() if SPEC[path]["type"] == "array" and keys != ["name"]} == {}


def test_every_pattern_has_a_description() -> None:
    patterns = {node["pattern"] for node in SPEC.values() if "pattern" in node}
    keys = set(spec_key_patterns())

    assert patterns | keys == set(list_patterns())


def spec_key_patterns() -> Iterator[str]:
    for section, field in (("scheduling", "nodeSelector"), ("program", "config")):
        model = find_model((section,))
        assert model
        yield from model.model_json_schema()["properties"][field]["patternProperties"]


def test_printer_columns() -> None:
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
    assert len(json.dumps(make_crd(), separators=(",", ":"))) <= 250_000


def rules_of(path: tuple[str, ...]) -> list[Any]:
    node = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path:
        node = node["items"] if name == "[]" else node["properties"][name]
    return list(node.get("x-kubernetes-validations", []))


FIXED = [path for path in SPEC_RULES if any(rule["rule"] == "self == oldSelf" for rule in rules_of(path))]


def place_of(path: tuple[str, ...]) -> str:
    """Return a place in the schema as the paths of its fields are written here."""
    return format_path(path).replace(".[]", "[]")


def test_optional_immutable_fields_are_compared_when_unset() -> None:
    for *above, name in FIXED:
        node = SPEC[place_of(tuple(above))]
        is_there = name in node.get("required", ()) or "default" in node["properties"][name]

        assert is_there or f"has(self.{name}) == has(oldSelf.{name})" in [
            rule["rule"] for rule in rules_of(tuple(above))
        ]


def test_rules_speak_in_sentences() -> None:
    rules = [*ROOT_RULES, *(rule for path in SPEC_RULES for rule in rules_of(path))]

    assert len(rules) > len(SPEC_RULES)
    assert [rule for rule in rules if not rule["message"].endswith(".")] == []


def test_immutable_fields_advise_what_to_do() -> None:
    fixed = [rule["message"] for path in SPEC_RULES for rule in rules_of(path) if rule["rule"] == "self == oldSelf"]

    assert [message for message in fixed if not message.startswith("cannot change: ")] == []
    assert [
        message
        for message in fixed
        if "checkpoint.takeover: true" not in message and "separate `checkpoint.uri`" not in message
    ] == []


@pytest.mark.parametrize(
    ("before", "after", "is_allowed"),
    [
        ({"min": 1, "max": 4}, {"min": 2, "max": 4}, True),
        ({"count": 4}, {"min": 1, "max": 4}, True),
        ({"min": 1, "max": 4}, {"min": 1, "max": 3}, False),
        ({"min": 1, "max": 4}, {"count": 3}, False),
        ({"count": 4}, {"min": 1, "max": 5}, False),
    ],
)
def test_the_parts_of_a_batch_stay_while_slices_train_as_replicas(
    before: dict[str, int], after: dict[str, int], is_allowed: bool
) -> None:
    replicas, sections = {"parallelism": {"replicas": {}}}, dict.fromkeys(REPLACED_SECTIONS, "")
    message = refuse({"slices": before, **replicas, **sections}, {"slices": after, **replicas, **sections})

    assert message == ("" if is_allowed else KEEP_REPLICAS["message"])
    assert refuse({"slices": before, **sections}, {"slices": after, **sections}) == "", "worlds can change their size"


LONGEST_LIST = 64
"""The most items of a list that a rule walks."""
RULE_LIMIT, TOTAL_LIMIT = 10_000_000, 100_000_000
"""What the API server lets one rule and a whole CRD cost by its own estimate."""
REQUEST_BYTES = 3 * 1024 * 1024
"""How long it takes a text to be that has no `maxLength`, such as a name."""


def cost_of(rule: str, times: int) -> float:
    """Bound the API server's estimate of the parts of CEL that we use.

    A step costs 1, a list 10 and 1 for each look into it, a search 0.1 for each byte. Held against the estimates of
    Kubernetes 1.36, rule by rule: never below them.
    """
    assert not re.search(r"\b(matches|all|exists|exists_one|replace|split|find|join)\(", rule), "not priced here"
    num_steps = len(re.findall(r"\w+|[^\w\s]", rule)) * (LONGEST_LIST if ".map(" in rule else 1)
    return times * (10 * num_steps + rule.count(".contains(") * REQUEST_BYTES / 10)


def count_items(path: tuple[str, ...]) -> int:
    """Return the most objects at a path: those of all lists above it."""
    return math.prod(SPEC[place_of(path[:place])]["maxItems"] for place, name in enumerate(path) if name == "[]")


def test_the_rules_cost_little() -> None:
    places = {path: rules_of(path) for path in SPEC_RULES}
    costs = [
        (rule["rule"], cost_of(rule["rule"], count_items(path)))
        for path, rules in {(): ROOT_RULES, **places}.items()
        for rule in rules
    ]

    assert [(rule, cost) for rule, cost in costs if cost > RULE_LIMIT / 20] == []
    assert sum(cost for _, cost in costs) < TOTAL_LIMIT / 20


def test_the_bound_of_the_name_is_that_of_the_smallest_job() -> None:
    assert len(longest_pod_name("n" * MAX_NAME, 1, 1)) == MAX_LABEL_LENGTH


def test_the_files_are_those_of_the_models() -> None:
    generate = [sys.executable, ROOT / "tools/generate.py", "--check"]  # a process: it imports JAX
    checked = subprocess.run(generate, capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert yaml.load((ROOT / "crds/trainingjob.yaml").read_text(), yaml.CSafeLoader) == make_crd()


UNKNOWN_TO_OLDER_VERSIONS = {
    "spec.scheduling.startTimeout",
    "spec.elastic.nodeProbation",
    *(f"spec.parallelism.replicas.{field}" for field in ("syncEvery", "learningRate", "momentum", "waitFor")),
}
"""Fields whose default the API server must not store: see `NoStoredDefaults`."""


def test_the_api_server_stores_no_default_of_the_model() -> None:
    spec = make_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    stored = dict(walk("spec", spec))
    silent = {path for path, node in SPEC.items() if "default" in node and "default" not in stored[path]}

    of_models = ("spec.model.", "spec.objective.distill.teacher.model.")
    assert silent == {
        path
        for path, node in SPEC.items()
        if "default" in node and (path.startswith(of_models) or path in UNKNOWN_TO_OLDER_VERSIONS)
    }
    assert stored["spec.model.norm.epsilon"]["description"].endswith(" Unset: 1e-05.")
    assert stored["spec.model.experts.scoring"]["description"].endswith(" Unset: softmax.")
    assert stored["spec.model.tieEmbeddings"]["description"].endswith(" Unset: false.")
    assert "Unset" not in stored["spec.model.norm"]["description"]


@pytest.mark.parametrize("path", [("nothing",), ("training", "steps", "more"), ("scheduling", "nodeSelector", "disk")])
def test_there_is_no_object_at_a_value(path: tuple[str, ...]) -> None:
    assert find_model(path) is None
