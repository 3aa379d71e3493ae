"""Settings are read from variables; all mistakes are reported at once."""

from dataclasses import fields
from pathlib import Path

import pytest

from trainingjob_operator.core.node_signals import NodeSignal
from trainingjob_operator.render.render_settings import NetworkRules
from trainingjob_operator.shell.settings import InvalidSettingsError, Settings, environment_variable, read_settings

FULL = {
    "TRAININGJOB_TRAINER_IMAGE": "registry.example/trainer:1",
    "TRAININGJOB_TRAINER_IMAGES": "tpu=registry.example:5000/tpu:1, cuda13=registry.example/gpu@sha256:0",
    "TRAININGJOB_NAMESPACE": "ml-system",
    "TRAININGJOB_NODE": "system-1",
    "TRAININGJOB_POD": "operator-1",
    "TRAININGJOB_NAMESPACES": "research, prod,research",
    "TRAININGJOB_TRAINER_PULL_POLICY": "Never",
    "TRAININGJOB_ELASTIC_WORKLOAD_PRIORITY": "low",
    "TRAININGJOB_NODE_SIGNALS": '[{"taint": "a.b/c"}, {"condition": "Broken", "value": "Unknown", "effect": "avoid"},'
    ' {"label": "a", "effect": "ignore"}, {"label": "d", "fault": true}, {"condition": "Planned", "fault": false}]',
    "TRAININGJOB_SERVICE": "tj",
    "TRAININGJOB_WEBHOOK_ENABLED": "False",
    "TRAININGJOB_WEBHOOK_SERVICE": "tj-checks",
    "TRAININGJOB_WEBHOOK_PORT": "10250",
    "TRAININGJOB_METRICS_PORT": "9090",
    "TRAININGJOB_METRICS_TLS_PORT": "9091",
    "TRAININGJOB_METRICS_AUTHENTICATION": "true",
    "TRAININGJOB_UNCHECKED_SERVICE_ACCOUNTS": "True",
    "TRAININGJOB_WEBHOOK_CONFIGURATION": "tj-webhook",
    "TRAININGJOB_CERTIFICATES": "/certificates",
    "TRAININGJOB_CA_SECRET": "tj-ca",
    "TRAININGJOB_ACCELERATORS": "/etc/rows.yaml",
    "TRAININGJOB_PRESETS": "/etc/presets.yaml",
    "TRAININGJOB_POD_PROFILES": "/etc/profiles.yaml",
    "TRAININGJOB_JOB_NETWORK": '{"ingress": [{"from": []}], "egress": []}',
    "TRAININGJOB_LOG_LEVEL": "DEBUG",
    "TRAININGJOB_LOG_LEVEL_FILE": "/etc/logs/level",
    "TRAININGJOB_LOG_FORMAT": "text",
}


def test_every_field_has_a_variable() -> None:
    assert {environment_variable(field.name) for field in fields(Settings)} == FULL.keys()


def test_all_variables_are_read() -> None:
    settings = read_settings(FULL)

    assert settings == Settings(
        trainer_image="registry.example/trainer:1",
        trainer_images={"tpu": "registry.example:5000/tpu:1", "cuda13": "registry.example/gpu@sha256:0"},
        namespace="ml-system",
        node="system-1",
        pod="operator-1",
        namespaces=("research", "prod"),
        trainer_pull_policy="Never",
        elastic_workload_priority="low",
        node_signals=(
            NodeSignal("taint", "a.b/c"),
            NodeSignal("condition", "Broken", "Unknown", "avoid", is_fault=True),
            NodeSignal("label", "a", effect="ignore"),
            NodeSignal("label", "d", is_fault=True),
            NodeSignal("condition", "Planned"),
        ),
        service="tj",
        webhook_enabled=False,
        webhook_service="tj-checks",
        webhook_port=10250,
        metrics_port=9090,
        metrics_tls_port=9091,
        metrics_authentication=True,
        unchecked_service_accounts=True,
        webhook_configuration="tj-webhook",
        certificates=Path("/certificates"),
        ca_secret="tj-ca",
        accelerators=Path("/etc/rows.yaml"),
        presets=Path("/etc/presets.yaml"),
        pod_profiles=Path("/etc/profiles.yaml"),
        job_network=NetworkRules(({"from": []},), ()),
        log_level="debug",
        log_level_file=Path("/etc/logs/level"),
        log_format="text",
    )
    assert settings.rendezvous_url == "https://tj.ml-system.svc:8443"
    assert settings.webhook_host == "tj-checks.ml-system.svc"


def test_unset_and_empty_variables_leave_the_defaults() -> None:
    settings = read_settings({"TRAININGJOB_TRAINER_IMAGE": "t", "TRAININGJOB_NAMESPACES": " ", "PATH": "/bin"})

    assert settings == Settings(trainer_image="t")


def test_self_signed_certificates_have_no_folder() -> None:
    assert read_settings({"TRAININGJOB_TRAINER_IMAGE": "t", "TRAININGJOB_CERTIFICATES": "self"}).certificates is None


@pytest.mark.parametrize("text", ["cuda=x", "tpu", "tpu=", "tpu=x,tpu=y"])
def test_images_of_no_platform_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        read_settings({"TRAININGJOB_TRAINER_IMAGE": "t", "TRAININGJOB_TRAINER_IMAGES": text})

    assert str(caught.value) == (
        f"TRAININGJOB_TRAINER_IMAGES: '{text}' must be PLATFORM=IMAGE, separated by commas; "
        "each of cpu, tpu, cuda13 once."
    )


@pytest.mark.parametrize(
    "text", ["on", "[]", "{}", '{"ingress": 1}', '{"ingress": ["all"]}', '{"ingress": [], "egress": [1]}']
)
def test_rules_that_no_policy_has_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSettingsError, match="must be JSON with lists of NetworkPolicy rules"):
        read_settings({"TRAININGJOB_TRAINER_IMAGE": "t", "TRAININGJOB_JOB_NETWORK": text})


def test_rules_without_egress_leave_it_open() -> None:
    settings = read_settings({"TRAININGJOB_TRAINER_IMAGE": "t", "TRAININGJOB_JOB_NETWORK": '{"ingress": []}'})

    assert settings.job_network == NetworkRules()


def test_all_mistakes_at_once() -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        read_settings(
            {
                "TRAININGJOB_NAMESPACES": "fine,Not_Fine",
                "TRAININGJOB_WEBHOOK_ENABLED": "maybe",
                "TRAININGJOB_WEBHOOK_PORT": "0",
                "TRAININGJOB_METRICS_PORT": "http",
                "TRAININGJOB_CERTIFICATES": "here",
                "TRAININGJOB_ACCELERATORS": "rows.yaml",
                "TRAININGJOB_LOG_FORMAT": "xml",
                "TRAININGJOB_METRICS_AUTHENTICATION": "true",
            }
        )

    assert str(caught.value).splitlines() == [
        "TRAININGJOB_TRAINER_IMAGE: must name the image of the trainer.",
        "TRAININGJOB_NAMESPACES: 'fine,Not_Fine' must be up to 63 lower-case letters, digits and '-'.",
        "TRAININGJOB_WEBHOOK_ENABLED: 'maybe' must be 'true' or 'false'.",
        "TRAININGJOB_WEBHOOK_PORT: '0' must be a port from 1 to 65535.",
        "TRAININGJOB_METRICS_PORT: 'http' must be a port from 1 to 65535.",
        "TRAININGJOB_CERTIFICATES: 'here' must be 'self' or the absolute path of a folder.",
        "TRAININGJOB_ACCELERATORS: 'rows.yaml' must be the absolute path of a file.",
        "TRAININGJOB_LOG_FORMAT: 'xml' must be one of json, text.",
        "TRAININGJOB_METRICS_TLS_PORT: must be set with TRAININGJOB_METRICS_AUTHENTICATION: tokens need TLS.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "5",
        '["a"]',
        "[{}]",
        '[{"taint": "a", "label": "b"}]',
        '[{"event": "a"}]',
        '[{"taint": 5}]',
        '[{"taint": "a b"}]',
        '[{"label": "a", "value": 5}]',
        '[{"label": "a", "value": "b c"}]',
        '[{"label": "a", "effect": "evict"}]',
        '[{"label": "a", "effect": 5}]',
        '[{"label": "a", "fault": "yes"}]',
    ],
)
def test_invalid_node_signals_are_named(text: str) -> None:
    with pytest.raises(InvalidSettingsError, match=r"TRAININGJOB_NODE_SIGNALS: .* must be a JSON list of node signals"):
        read_settings({"TRAININGJOB_TRAINER_IMAGE": "t", "TRAININGJOB_NODE_SIGNALS": text})
