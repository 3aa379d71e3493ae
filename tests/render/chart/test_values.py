"""The values of the chart: refused with their place where they are wrong, documented where they are right."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

REFUSED = {
    "an unknown value": ({"image": {"tagg": "1"}}, "'tagg' not allowed"),
    "an unknown section": ({"replicas": 2}, "'replicas' not allowed"),
    "a text for a flag": ({"webhook": {"enabled": "false"}}, "/webhook/enabled"),
    "no such policy": ({"webhook": {"failurePolicy": "Maybe"}}, "'Fail', 'Ignore'"),
    "a timeout of a minute": ({"webhook": {"timeoutSeconds": 60}}, "/webhook/timeoutSeconds"),
    "no such level": ({"logs": {"level": "loud"}}, "/logs/level"),
    "no image": ({"image": {"repository": ""}}, "/image/repository"),
    "a tag in the repository": ({"image": {"repository": "trainer:1"}}, "/image/repository"),
    "a short digest": ({"trainer": {"image": {"digest": "sha256:12"}}}, "/trainer/image/digest"),
    "a namespace that is none": ({"watch": {"namespaces": ["Research"]}}, "/watch/namespaces/0"),
    "one pull secret without its name": ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
    "two monitors": (
        {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        "every metric would be counted twice",
    ),
}


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_value_is_refused_with_its_place(chart, values, words) -> None:
    done = chart.run("template", values)

    assert done.returncode != 0
    assert words in done.stderr


FREE_FORM = ("resources.requests", "resources.limits")
"""Values that belong to Kubernetes: their inside is neither ours to document nor to check."""


def test_every_value_has_a_comment_that_begins_with_its_name(chart) -> None:
    text = (chart.folder / "values.yaml").read_text()

    documented = {line.split("# ", 1)[1].split(":")[0] for line in text.splitlines() if line.strip().startswith("# ")}
    assert set(value_paths(yaml.safe_load(text), ())) - documented - set(FREE_FORM) == set()


def test_the_schema_knows_exactly_the_values_that_there_are(chart) -> None:
    schema = json.loads((chart.folder / "values.schema.json").read_text())
    values = yaml.safe_load((chart.folder / "values.yaml").read_text())

    without_value = {"global", *(f"certManager.issuerRef.{part}" for part in ("group", "kind", "name"))}
    assert set(schema_paths(schema, ())) - without_value == set(value_paths(values, ()))


def value_paths(values: dict[str, Any], parents: tuple[str, ...]) -> Iterator[str]:
    for key, value in values.items():
        path = ".".join((*parents, key))
        yield path
        if isinstance(value, dict) and path not in FREE_FORM:
            yield from value_paths(value, (*parents, key))


def schema_paths(schema: dict[str, Any], parents: tuple[str, ...]) -> Iterator[str]:
    for key, inner in schema.get("properties", {}).items():
        yield ".".join((*parents, key))
        yield from schema_paths(inner, (*parents, key))
