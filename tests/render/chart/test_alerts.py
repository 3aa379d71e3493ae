"""The alert rules and the dashboard name metrics and labels that the operator exports, and sections of the runbook."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainingjob_operator.shell.metric_declarations import METRICS

RUNBOOK = Path(__file__).parents[3] / "docs/troubleshooting.md"
LABELS = {
    f"{metric.name}{suffix}": {*metric.labels, "pod", *({"le"} if metric.kind == "histogram" else ())}
    for metric in METRICS
    for suffix in ("", *(("_bucket", "_sum", "_count") if metric.kind == "histogram" else ()))
}
"""Labels of each time series; Prometheus adds the pod that it scrapes."""
ALERTS = {"metrics": {"alerts": {"enabled": True}}}


def unknown_names(expression: str) -> list[str]:
    """Return the metrics of an expression that no program exports, and the labels that its metrics lack."""
    metrics = set(re.findall(r"\btrainingjob_\w+", re.sub(r'"[^"]*"', "", expression)))
    selectors = re.findall(r"(trainingjob_\w+)\{([^}]*)\}", expression)
    selected = [(metric, label) for metric, text in selectors for label in re.findall(r"(\w+)=", text)]
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    wanted = [*selected, *((metric, label) for metric in metrics for label in grouped)]
    lacking = [f"{metric}{{{label}}}" for metric, label in wanted if label not in LABELS.get(metric, {label})]
    return sorted({*(metrics - LABELS.keys()), *lacking})


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ("rate(trainingjob_reconcile_errors[5m])", ["trainingjob_reconcile_errors"]),
        ("sum by (namespace, job) (trainingjob_step)", ["trainingjob_step{job}"]),
        ('trainingjob_jobs{name="a"}', ["trainingjob_jobs{name}"]),
        ('absent(trainingjob_build_info{pod=~"trainingjob_a.*"})', []),
        ("trainingjob_webhook_duration_seconds_count", []),
    ],
)
def test_unknown_names(expression: str, unknown: list[str]) -> None:
    assert unknown_names(expression) == unknown


def rules(chart: Any, values: dict[str, Any]) -> list[dict[str, Any]]:
    (group,) = chart.find("PrometheusRule", values)["spec"]["groups"]
    return list(group["rules"])


def test_each_alert_names_exported_metrics_and_a_section_of_the_runbook(chart) -> None:
    headings = re.findall("^## (.*)$", RUNBOOK.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert len(rules(chart, ALERTS)) == 7
    for rule in rules(chart, ALERTS):
        assert "trainingjob_" in rule["expr"]
        assert unknown_names(rule["expr"]) == []
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor in anchors) == ("docs/troubleshooting.md", True)


def test_alerts_are_off_by_default_and_follow_the_webhook(chart) -> None:
    assert not any(item["kind"] == "PrometheusRule" for item in chart.objects({}))
    names = {rule["alert"] for rule in rules(chart, {**ALERTS, "webhook": {"enabled": False}})}
    assert "TrainingJobWebhookDown" not in names


def test_limited_namespaces_have_an_alert_that_names_an_exported_metric(chart) -> None:
    (*others, last) = rules(chart, {**ALERTS, "watch": {"namespaces": ["research"]}})

    assert last["alert"] == "TrainingJobNamespaceUnreadable"
    assert last not in rules(chart, ALERTS)
    assert others == rules(chart, ALERTS)
    assert unknown_names(last["expr"]) == []
    assert last["annotations"]["runbook_url"] == others[-1]["annotations"]["runbook_url"]


def test_each_panel_of_the_dashboard_shows_exported_metrics(chart) -> None:
    config = chart.find("ConfigMap", {"metrics": {"dashboard": {"enabled": True}}}, "trainingjob-operator-dashboard")
    panels = json.loads(config["data"]["trainingjob.json"])["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert len(expressions) == len(panels) >= 14
    assert [unknown for expression in expressions for unknown in unknown_names(expression)] == []
    assert all("trainingjob_" in expression for expression in expressions)


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_the_namespace_of_a_job_keeps_its_label(chart, kind) -> None:
    section = f"{kind[0].lower()}{kind[1:]}"
    spec = chart.find(kind, {"metrics": {section: {"enabled": True}}})["spec"]

    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
