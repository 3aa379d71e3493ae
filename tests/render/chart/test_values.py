"""The values of the chart: invalid ones are rejected with their path, and all are documented."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.shell.accelerators import AcceleratorRow, RatesRow, SliceRow, read_accelerators
from trainingjob_operator.shell.added_presets import PresetRow, read_presets
from trainingjob_operator.shell.added_profiles import (
    CONTAINER_FIELDS,
    SPEC_FIELDS,
    MetadataRow,
    ProfileRow,
    read_profiles,
)
from trainingjob_operator.shell.shipped_profiles import SHIPPED

REFUSED = {
    "an unknown value": ({"image": {"tagg": "1"}}, "'tagg' not allowed"),
    "an unknown section": ({"replica": 2}, "'replica' not allowed"),
    "a text for a flag": ({"webhook": {"enabled": "false"}}, "/webhook/enabled"),
    "no such policy": ({"webhook": {"failurePolicy": "Maybe"}}, "'Fail', 'Ignore'"),
    "an operator without pods": ({"replicas": 0}, "/replicas"),
    "a webhook without pods": ({"webhook": {"replicas": 0}}, "/webhook/replicas"),
    "a port that needs a right": ({"webhook": {"port": 443}}, "/webhook/port"),
    "a spread with a selector": (
        {"webhook": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "labelSelector": {}}]}},
        "'labelSelector' not allowed",
    ),
    "a negative time on a failed node": ({"nodeFailureTolerationSeconds": -1}, "/nodeFailureTolerationSeconds"),
    "a timeout of a minute": ({"webhook": {"timeoutSeconds": 60}}, "/webhook/timeoutSeconds"),
    "no such level": ({"logs": {"level": "loud"}}, "/logs/level"),
    "a node signal of two kinds": ({"nodeSignals": [{"taint": "a", "label": "b"}]}, "/nodeSignals/0"),
    "a node signal of no kind": ({"nodeSignals": [{"value": "a"}]}, "/nodeSignals/0"),
    "a node signal with a space": ({"nodeSignals": [{"taint": "a b"}]}, "/nodeSignals/0/taint"),
    "a node signal with a fault as text": ({"nodeSignals": [{"taint": "a", "fault": "yes"}]}, "/nodeSignals/0/fault"),
    "a node signal of another effect": ({"nodeSignals": [{"taint": "a", "effect": "evict"}]}, "/nodeSignals/0/effect"),
    "no image": ({"image": {"repository": ""}}, "/image/repository"),
    "a tag in the repository": ({"image": {"repository": "trainer:1"}}, "/image/repository"),
    "a short digest": ({"trainer": {"image": {"digest": "sha256:12"}}}, "/trainer/image/digest"),
    "an image of no platform": ({"trainer": {"images": {"cuda": {"tag": "1"}}}}, "'cuda' not allowed"),
    "a tag in the repository of a platform": (
        {"trainer": {"images": {"tpu": {"repository": "trainer:1"}}}},
        "/trainer/images/tpu/repository",
    ),
    "a namespace that is none": ({"watch": {"namespaces": ["Research"]}}, "/watch/namespaces/0"),
    "one pull secret without its name": ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
    "an accelerator without its slices": (
        {"accelerators": {"gpu": {"platform": "cuda", "resource": "a.b/c"}}},
        "missing property 'topologies'",
    ),
    "an accelerator with a field that no row has": (
        {"accelerators": {"gpu": {"platform": "cuda", "resource": "a.b/c", "topologies": {"1": {}}, "hosts": 1}}},
        "'hosts' not allowed",
    ),
    "a name that no job could write": (
        {"accelerators": {"My_GPU": {"platform": "cuda", "resource": "a.b/c", "topologies": {"1": {}}}}},
        "invalid propertyName 'My_GPU'",
    ),
    **{
        f"a label that the chart sets: {label}": ({"podLabels": {label: "x"}}, f"invalid propertyName '{label}'")
        for label in (
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/version",
            "app.kubernetes.io/managed-by",
            "helm.sh/chart",
        )
    },
    "a variable that the chart sets": ({"extraEnv": [{"name": "TRAININGJOB_NODE", "value": "x"}]}, "/extraEnv/0/name"),
    "a number as a variable": ({"extraEnv": [{"name": "RETRIES", "value": 3}]}, "/extraEnv/0/value"),
    "a volume of the chart's name": ({"extraVolumes": [{"name": "certificates"}]}, "/extraVolumes/0/name"),
    "a mount without its path": ({"extraVolumeMounts": [{"name": "trust"}]}, "missing property 'mountPath'"),
    "a root user": ({"podSecurityContext": {"runAsUser": 0}}, "/podSecurityContext/runAsUser"),
    "a writable image": (
        {"containerSecurityContext": {"readOnlyRootFilesystem": False}},
        "/containerSecurityContext/readOnlyRootFilesystem",
    ),
    "a name that is too long for the webhook's Service": ({"fullnameOverride": "a" * 56}, "/fullnameOverride"),
    "a name that no Service may have": ({"fullnameOverride": "1-operator"}, "/fullnameOverride"),
    "an issuer without its name": (
        {"certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer"}}},
        "missing property 'name'",
    ),
    "a registry with a scheme": ({"imageRegistry": "https://mirror.example/"}, "/imageRegistry"),
    "a peer that is none": ({"networkPolicy": {"metricsFrom": [{"ip": "10.0.0.1"}]}}, "'ip' not allowed"),
    "a rule of the other direction": ({"networkPolicy": {"jobs": {"ingress": [{"to": []}]}}}, "'to' not allowed"),
    "no port of DNS": ({"networkPolicy": {"dnsPorts": []}}, "/networkPolicy/dnsPorts"),
    "metrics on the port of the rendezvous": (
        {"metrics": {"tls": {"enabled": True, "port": 8443}}},
        "metrics.tls.port: 8443 must differ from the operator's rendezvous, 8443",
    ),
    "metrics with TLS on the port of the probes": (
        {"webhook": {"enabled": False}, "metrics": {"tls": {"enabled": True, "port": 8080}}},
        "metrics.tls.port: 8080 must differ from the operator's probes and metrics, 8080",
    ),
    "reviews on the port of the webhook's probes": (
        {"webhook": {"port": 9000, "metricsPort": 9000}},
        "webhook.metricsPort: 9000 must differ from webhook.port, 9000",
    ),
    "reviews on the port of metrics with TLS": (
        {"webhook": {"port": 8444}, "metrics": {"tls": {"enabled": True}}},
        "metrics.tls.port: 8444 must differ from webhook.port, 8444",
    ),
    "probes of the webhook on the port of metrics with TLS": (
        {"webhook": {"metricsPort": 8444}, "metrics": {"tls": {"enabled": True}}},
        "metrics.tls.port: 8444 must differ from webhook.metricsPort, 8444",
    ),
    "no port of the API server": ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
    "a goodput in percent": ({"metrics": {"alerts": {"minGoodput": 50}}}, "/metrics/alerts/minGoodput"),
    "a time without its unit": ({"metrics": {"alerts": {"noProgressFor": "30"}}}, "/metrics/alerts/noProgressFor"),
    "a wait without its unit": ({"metrics": {"alerts": {"waitsFor": "1"}}}, "/metrics/alerts/waitsFor"),
    "a token without TLS": (
        {"metrics": {"authentication": {"enabled": True}}},
        "metrics.authentication.enabled needs metrics.tls.enabled",
    ),
    "a PodMonitor without a token": (
        {"metrics": {"podMonitor": {"enabled": True}, "tls": {"enabled": True}, "authentication": {"enabled": True}}},
        "metrics.podMonitor needs metrics.authentication.tokenSecret.name",
    ),
    "a scraper without its name": ({"metrics": {"authentication": {"scrapers": [{"kind": "User"}]}}}, "scrapers/0"),
    "two monitors": (
        {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        "every metric would be counted twice",
    ),
}


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_value_is_rejected_with_its_path(chart, values, words) -> None:
    done = chart.run("template", values)

    assert done.returncode != 0
    assert words in done.stderr


FREE_FORM = (
    *(f"{part}resources.{kind}" for part in ("", "webhook.") for kind in ("requests", "limits")),
    "metrics.dashboard.labels",
    "podSecurityContext",
    "containerSecurityContext",
)
"""Values that belong to Kubernetes: their inside is neither ours to document nor to check."""


def test_every_value_has_a_comment_that_begins_with_its_name(chart) -> None:
    text = (chart.folder / "values.yaml").read_text()

    documented = {line.split("# ", 1)[1].split(":")[0] for line in text.splitlines() if line.strip().startswith("# ")}
    assert set(value_paths(yaml.safe_load(text), ())) - documented - set(FREE_FORM) == set()


def test_schema_has_exactly_the_values_of_the_chart(chart) -> None:
    schema = json.loads((chart.folder / "values.schema.json").read_text())
    values = yaml.safe_load((chart.folder / "values.yaml").read_text())

    without_value = {"global", *(f"certManager.issuerRef.{part}" for part in ("group", "kind", "name"))}
    inside = {path for path in schema_paths(schema, ()) if path.rpartition(".")[0] in FREE_FORM}
    assert set(schema_paths(schema, ())) - without_value - inside == set(value_paths(values, ()))


def test_the_schema_of_an_accelerator_has_the_fields_of_the_operator_s_row(chart) -> None:
    schema = json.loads((chart.folder / "values.schema.json").read_text())["properties"]["accelerators"]
    row = schema["additionalProperties"]
    models = {
        AcceleratorRow: row,
        SliceRow: row["properties"]["topologies"]["additionalProperties"],
        RatesRow: row["properties"]["rates"],
    }

    for model, part in models.items():
        assert {field.alias for field in model.model_fields.values()} == part["properties"].keys()
        assert part["additionalProperties"] is False
    assert {field.alias for field in AcceleratorRow.model_fields.values() if field.is_required()} == set(
        row["required"]
    )


def test_the_schema_of_a_preset_has_the_fields_of_the_operator_s_row(chart) -> None:
    schema = json.loads((chart.folder / "values.schema.json").read_text())["properties"]["presets"]
    row = schema["additionalProperties"]

    assert PresetRow.model_fields.keys() == row["properties"].keys()
    assert {name for name, field in PresetRow.model_fields.items() if field.is_required()} == set(row["required"])


def test_the_schema_of_a_profile_has_the_fields_of_the_operator_s_row(chart) -> None:
    schema = json.loads((chart.folder / "values.schema.json").read_text())["properties"]["podProfiles"]
    properties = schema["additionalProperties"]["properties"]

    assert {field.alias or name for name, field in ProfileRow.model_fields.items()} == properties.keys()
    assert MetadataRow.model_fields.keys() == properties["metadata"]["properties"].keys()
    assert properties["from"]["enum"] == list(SHIPPED)


def test_the_example_of_a_profile_is_a_row(chart) -> None:
    text = (chart.folder / "values.yaml").read_text().split("\n# podProfiles:", 1)[1].split("For example:\n", 1)[1]
    example, _ = text.split("# Lists are added", 1)
    rows = yaml.safe_load("\n".join(line.removeprefix("#") for line in example.splitlines()))
    table = read_profiles(rows, BUILTIN.accelerators)

    assert table.invalid_rows == ()
    assert table.profiles[0].source == "https://cloud.example/networks"
    assert all(name in text for name in (*SHIPPED, *SPEC_FIELDS, *CONTAINER_FIELDS))


def test_the_example_of_a_preset_is_a_row(chart) -> None:
    text = (chart.folder / "values.yaml").read_text().split("trainingjob_refused_presets`. For example:\n", 1)[1]
    example = text.split("# A job whose", 1)[0]
    table = read_presets(yaml.safe_load("\n".join(line.removeprefix("#") for line in example.splitlines())))

    assert table.invalid_rows == ()
    assert 1e9 < table.presets["team-1b"].parameters < 2e9


def test_the_example_of_an_accelerator_is_a_row(chart) -> None:
    text = (chart.folder / "values.yaml").read_text().split("\naccelerators:", 1)[0].split("For example:\n")[-1]
    example, torus = text.split("# Slices with a torus", 1)
    table = read_accelerators(yaml.safe_load("\n".join(line.removeprefix("#") for line in example.splitlines())))

    assert table.invalid_rows == ()
    row = table.hardware.accelerators_by_name["nvidia-l40s"]
    assert [(one.topology, one.num_hosts) for one in row.slices] == [("4", 1), ("8", 2)]
    assert row.rates.bfloat16 == 362e12
    assert '`"4x4x8": {hosts: 32, wraps: [true, true, true]}`' in torus


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


@pytest.mark.parametrize(
    "values",
    [
        {"metrics": {"tls": {"port": 8443}}},
        {"webhook": {"port": 8443}},
        {"webhook": {"port": 8444, "metricsPort": 8443}},
        {"webhook": {"enabled": False, "port": 8444, "metricsPort": 8444}, "metrics": {"tls": {"enabled": True}}},
    ],
    ids=["a port that is not served", "of another pod", "of another pod, and not served", "of no pod"],
)
def test_equal_ports_that_no_pod_serves_twice_are_allowed(chart, values) -> None:
    assert chart.run("template", values).returncode == 0
