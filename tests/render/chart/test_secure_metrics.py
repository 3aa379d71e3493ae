"""Metrics over TLS, and the rights of scrapers."""

from typing import Any

import pytest

TLS: dict[str, Any] = {"tls": {"enabled": True}, "serviceMonitor": {"enabled": True}}
SECURE: dict[str, Any] = {"metrics": TLS | {"authentication": {"enabled": True}}}
OPERATOR, WEBHOOK = "trainingjob-operator", "trainingjob-operator-webhook"


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_only_metrics_move_to_the_port_for_tls(chart, name) -> None:
    (container,) = chart.find("Deployment", SECURE, name)["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    services = {
        one["name"]: (one["port"], one["targetPort"]) for one in chart.find("Service", SECURE, name)["spec"]["ports"]
    }
    *_, admitted = chart.find("NetworkPolicy", SECURE, name)["spec"]["ingress"]

    assert (ports["metrics"], services["metrics"], admitted["ports"]) == (
        8444,
        (8444, "metrics"),
        [{"port": "metrics"}],
    )
    assert ports["health"] == 8080
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "health"


def test_each_endpoint_of_a_monitor_verifies_the_certificate_of_its_pods(chart) -> None:
    endpoints = chart.find("ServiceMonitor", SECURE)["spec"]["endpoints"]

    kept = {one["relabelings"][0]["regex"]: one["tlsConfig"] for one in endpoints}
    for name in (OPERATOR, WEBHOOK):
        labels = chart.find("Deployment", SECURE, name)["spec"]["selector"]["matchLabels"]
        config = kept.pop(labels["app.kubernetes.io/name"])
        assert config["serverName"] == f"{name}.trainingjob-system.svc"
        assert config["ca"]["secret"] == {"name": "trainingjob-operator-ca", "key": "ca.crt"}
    assert kept == {}
    assert {one["scheme"] for one in endpoints} == {"https"}
    assert {one["bearerTokenFile"] for one in endpoints} == {"/var/run/secrets/kubernetes.io/serviceaccount/token"}


def test_a_monitor_sends_no_token_that_nothing_needs(chart) -> None:
    for endpoint in chart.find("ServiceMonitor", {"metrics": TLS})["spec"]["endpoints"]:
        assert "bearerTokenFile" not in endpoint
        assert "authorization" not in endpoint


def test_a_monitor_takes_the_token_and_the_ca_from_secrets(chart, variants) -> None:
    for endpoint in chart.find("PodMonitor", variants["everything"])["spec"]["podMetricsEndpoints"]:
        assert endpoint["authorization"]["credentials"] == {"name": "scraper", "key": "token"}
        assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "trainingjob-operator-tls", "key": "ca.crt"}


def test_scrapers_may_read_metrics_and_nothing_else(chart, variants) -> None:
    name = "trainingjob-metrics-reader"
    role = chart.find("ClusterRole", variants["everything"], name)
    binding = chart.find("ClusterRoleBinding", variants["everything"], name)

    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}]
    bound = [one["metadata"]["name"] for one in chart.objects(SECURE) if one["kind"] == "ClusterRoleBinding"]
    assert name not in bound, "no scraper is named"
    assert name not in {one["metadata"]["name"] for one in chart.objects({"metrics": TLS})}
