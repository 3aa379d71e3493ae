"""Metadata beside a spec is validated as `kubectl apply` and the API server do."""

from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.spec.job import API_VERSION, KIND
from trainingjob_operator.core.validation.validate import validate_manifest
from trainingjob_operator.core.validation.validate_metadata import FOREIGN_LABELS


def job(metadata: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "demo"} if metadata is None else metadata,
        "spec": spec_manifest(),
        **more,
    }


def problems_of(manifest: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in validate_manifest(manifest).problems]


def marks_warned_of(manifest: dict[str, Any]) -> list[str]:
    return [warning.path for warning in validate_manifest(manifest).warnings if warning.path.startswith("metadata")]


FINE: dict[str, dict[str, Any]] = {
    "a name": {"name": "demo"},
    "a namespace": {"name": "demo", "namespace": "team-1"},
    "labels": {"name": "demo", "labels": {"app": "demo", "example.com/team": "", "Team_1": "A.b_c-1"}},
    "annotations": {"name": "demo", "annotations": {"Example.com/note": "any text: {}\n", "note": "x" * 200_000}},
    "what a cluster writes": {
        "name": "demo",
        "uid": "u",
        "generation": 3,
        "resourceVersion": "7",
        "managedFields": [{}],
    },
    "nulls": {"name": "demo", "labels": None, "annotations": None, "namespace": None},
}


@pytest.mark.parametrize("metadata", FINE.values(), ids=FINE.keys())
def test_the_api_server_takes_this(metadata: dict[str, Any]) -> None:
    checked = validate_manifest(job(metadata, status={"phase": "Running"}))

    assert checked.problems == ()
    assert checked.plan is not None


BAD: dict[str, tuple[Any, str, str]] = {
    "no name": ({}, "metadata.name: is missing. A TrainingJob must have a name.", ""),
    "a generated name": (
        {"generateName": "demo-"},
        "metadata.name: is missing. `kubectl apply` does not support `generateName`. Write a name, or use",
        "",
    ),
    "a number for a name": ({"name": 1234}, "metadata.name: 1234 must be text, not a number", "job-1234"),
    "a commit for a name": ({"name": 12e5}, "metadata.name: 1200000 must be text, not a number", "job-1200000"),
    "no for a name": ({"name": False}, "metadata.name: false must be text. YAML reads `no`", '"no", "off", "false"'),
    "a list for a name": ({"name": ["a"]}, 'metadata.name: ["a"] must be text.', ""),
    "a digit first": ({"name": "7b-run"}, "metadata.name: 7b-run must have", "job-7b-run"),
    "digits alone": ({"name": "553640"}, "metadata.name: 553640 must have", "job-553640"),
    "other letters": ({"name": "llama-\N{LLAMA}"}, 'metadata.name: "llama-', "llama"),
    "misspelt labels": (
        {"name": "demo", "lables": {}},
        "metadata.lables: lables is not a field of metadata. It has",
        "labels",
    ),
    "misspelt annotations": (
        {"name": "demo", "annotation": {}},
        "metadata.annotation: annotation is not a field",
        "annotations",
    ),
    "another field": ({"name": "demo", "clusterName": "a"}, "metadata.clusterName: clusterName is not a field", ""),
    "labels as a list": ({"name": "demo", "labels": ["a"]}, 'metadata.labels: ["a"] must be a map', ""),
    "a number for a label": (
        {"name": "demo", "labels": {"v": 1}},
        "metadata.labels.v: 1 must be text, not a number",
        '"1"',
    ),
    "truth for a label": (
        {"name": "demo", "labels": {"v": True}},
        "metadata.labels.v: true must be text",
        '"yes", "on", "true"',
    ),
    "null for a label": ({"name": "demo", "labels": {"v": None}}, "metadata.labels.v: null must be text.", ""),
    "a label with a space": ({"name": "demo", "labels": {"v": "a b"}}, 'metadata.labels.v: "a b" must have', "a-b"),
    "a long label": ({"name": "demo", "labels": {"v": "x" * 64}}, 'metadata.labels.v: "xxx', "x" * 63),
    "a label of signs": ({"name": "demo", "labels": {"v": "--"}}, "metadata.labels.v: -- must have", ""),
    "a label's key": ({"name": "demo", "labels": {"a b": "c"}}, 'metadata.labels.a b: "a b" must be letters', ""),
    "a label's domain": ({"name": "demo", "labels": {"Example.com/b": "c"}}, "metadata.labels.Example.com/b: ", ""),
    "an annotation's key": ({"name": "demo", "annotations": {"/b": "c"}}, "metadata.annotations./b: ", ""),
    "a number for an annotation": (
        {"name": "demo", "annotations": {"n": 3}},
        "metadata.annotations.n: 3 must be text, not a number",
        '"3"',
    ),
    "large annotations": (
        {"name": "demo", "annotations": {"n": "x" * 262_144}},
        "metadata.annotations: must have at most 262,144 bytes in total, but have 262,145.",
        "",
    ),
    "a namespace with capitals": (
        {"name": "demo", "namespace": "My_Team"},
        "metadata.namespace: My_Team must have",
        "my-team",
    ),
    "a namespace of signs": ({"name": "demo", "namespace": "__"}, "metadata.namespace: __ must have", ""),
    "a number for a namespace": (
        {"name": "demo", "namespace": 7},
        "metadata.namespace: 7 must be text, not a number",
        '"7"',
    ),
}


@pytest.mark.parametrize(("metadata", "words", "nearest"), BAD.values(), ids=BAD.keys())
def test_metadata_that_the_api_server_rejects(metadata: Any, words: str, nearest: str) -> None:
    (problem,) = validate_manifest(job(metadata)).problems

    assert str(problem).startswith(words)
    if nearest:
        assert ", ".join(problem.nearest) == nearest


def test_metadata_is_an_object() -> None:
    assert problems_of(job("demo")) == [
        "metadata: demo must be an object of fields.",
        "metadata.name: is missing. A TrainingJob must have a name.",
    ]


TOP: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt spec beside it": ({"sepc": {}}, "sepc: sepc is not a field of a TrainingJob. It has apiVersion, kind,"),
    "a holder of anchors": ({"x-common": {}}, "x-common: x-common is not a field of a TrainingJob."),
    "fields of others": ({"data": {}}, "data: data is not a field of a TrainingJob."),
}


@pytest.mark.parametrize(("more", "words"), TOP.values(), ids=TOP.keys())
def test_the_object_has_no_other_fields(more: dict[str, Any], words: str) -> None:
    (problem,) = validate_manifest(job(**more)).problems

    assert str(problem).startswith(words)


def test_a_misspelt_spec_is_named() -> None:
    manifest = job()
    manifest["sepc"] = manifest.pop("spec")

    assert any(
        problem.path == "sepc" and problem.nearest == ("spec",) for problem in validate_manifest(manifest).problems
    )


def test_value_that_is_no_object_has_no_spec() -> None:
    assert problems_of({}) == [
        "metadata.name: is missing. A TrainingJob must have a name.",
        "spec: null must be an object of fields.",
    ]


MARKS = {key: f"{key}any-thing" if key.endswith("/") else key for key in FOREIGN_LABELS}


@pytest.mark.parametrize("key", MARKS.values())
@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_a_mark_without_effect_is_warned_of(field: str, key: str) -> None:
    checked = validate_manifest(job({"name": "demo", field: {key: "a"}}))

    assert checked.problems == ()
    assert f"metadata.{field}.{key}: has no effect on a TrainingJob." in str(checked.warnings[0])


def test_the_most_exact_mark_counts() -> None:
    checked = validate_manifest(job({"name": "demo", "labels": {"kueue.x-k8s.io/queue-name": "research"}}))

    assert "Set `spec.scheduling.queueName`." in checked.warnings[0].message


@pytest.mark.parametrize("labels", [{"app.kubernetes.io/name": "demo"}, {"team": "a"}, {"my.karpenter.sh/x": "a"}])
def test_other_marks_are_nobodys_business(labels: dict[str, str]) -> None:
    assert marks_warned_of(job({"name": "demo", "labels": labels})) == []


def test_queue_may_be_set_in_both_places() -> None:
    manifest = job({"name": "demo", "labels": {"kueue.x-k8s.io/queue-name": "research"}})
    manifest["spec"] = spec_manifest(scheduling={"queueName": "research"})

    assert marks_warned_of(manifest) == []
