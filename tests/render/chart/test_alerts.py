"""The alert rules and the dashboard name metrics and labels that the operator exports, and sections of the runbook."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from e2e.monitoring.rule_cases import CASES
from trainingjob_operator.shell.metric_declarations import METRICS

RUNBOOK = Path(__file__).parents[3] / "docs/troubleshooting.md"
LABELS = {
    f"{metric.name}{suffix}": {*metric.labels, "pod", *({"le"} if metric.kind == "histogram" else ())}
    for metric in METRICS
    for suffix in ("", *(("_bucket", "_sum", "_count") if metric.kind == "histogram" else ()))
}
"""Labels of each time series; Prometheus adds the pod that it scrapes."""
ALERTS = {"metrics": {"alerts": {"enabled": True}}, "watch": {"namespaces": ["research"]}}


def unknown_names(expression: str) -> list[str]:
    """Return the metrics of an expression that no program exports, and the labels that its metrics lack."""
    metrics = find_metrics(expression)
    selectors = re.findall(r"(trainingjob_\w+)\{([^}]*)\}", expression)
    selected = [(metric, label) for metric, text in selectors for label in re.findall(r"(\w+)=", text)]
    grouped = [
        (metric, label)
        for found in re.finditer(r"by \(([^)]*)\) ", expression)
        for metric in find_metrics(find_argument(expression[found.end() :]))
        for label in found[1].split(", ")
    ]
    wanted = [*selected, *grouped]
    lacking = [f"{metric}{{{label}}}" for metric, label in wanted if label not in LABELS.get(metric, {label})]
    return sorted({*(metrics - LABELS.keys()), *lacking})


def find_metrics(expression: str) -> set[str]:
    return set(re.findall(r"\btrainingjob_\w+", re.sub(r'"[^"]*"', "", expression)))


def find_argument(text: str) -> str:
    """Return the argument in parentheses with which a text begins."""
    depth = 0
    for end, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: end + 1]
    raise AssertionError(f"the parentheses of {text} are not balanced")


@pytest.mark.parametrize(
    ("expression", "unknown"),
    [
        ("sum by (bucket) (rate(trainingjob_step[5m])) unless trainingjob_phase", ["trainingjob_step{bucket}"]),
        ("sum by (bucket) (trainingjob_goodput_seconds) unless trainingjob_phase", []),
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


def test_each_alert_names_exported_metrics_and_has_a_row_in_the_runbook(chart) -> None:
    section = RUNBOOK.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(TrainingJob\w+)`: .* \| `([^`]+)` \| `([^`]+)` \| .* \|$", section, re.MULTILINE)

    alerts = rules(chart, ALERTS)

    assert len(alerts) == 12
    assert [name for name, _, _ in rows] == [rule["alert"] for rule in alerts]
    assert all(first != second for _, first, second in rows)
    for rule in alerts:
        assert "trainingjob_" in rule["expr"]
        assert unknown_names(rule["expr"]) == []
        assert rule["annotations"]["runbook_url"] == "docs/troubleshooting.md#alerts"


def test_the_page_about_operations_lists_each_alert_with_its_severity(chart) -> None:
    page = (RUNBOOK.parent / "operations.md").read_text()
    rows = re.findall(r"^\| `(TrainingJob\w+)` \| (\w+) \|", page, re.MULTILINE)

    alerts = rules(chart, ALERTS | {"watch": {"namespaces": ["research"]}})

    assert sorted(rows) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in alerts)


def test_the_runbook_reads_the_logs_of_all_pods_of_a_deployment(chart) -> None:
    """`kubectl logs deployment/NAME` reads one pod, which may be a standby without the error."""
    commands = re.findall(r"`(kubectl logs [^`]*)`", RUNBOOK.read_text())
    read = {text for command in commands for text in re.findall(r"--selector (\S+)", command)}
    deployments = [each for each in chart.objects({}) if each["kind"] == "Deployment"]
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in deployments]

    assert [command for command in commands if "--selector" not in command or "--tail=-1" not in command] == []
    assert read == {f"app.kubernetes.io/name={labels['app.kubernetes.io/name']}" for labels in pods}


def test_each_alert_has_a_situation_in_which_it_fires_and_one_in_which_it_does_not(chart) -> None:
    names = {rule["alert"] for rule in rules(chart, ALERTS)}

    assert {case.alert for case in CASES if True in case.fires.values()} == names
    assert {case.alert for case in CASES if set(case.fires.values()) == {False}} == names


def test_each_series_of_the_situations_is_exported() -> None:
    expressions = [re.sub(r", pod=", ", pod=~", name) for case in CASES for name in case.series]

    assert [unknown for expression in expressions for unknown in unknown_names(expression)] == []


def test_alerts_about_jobs_have_no_label_of_a_pod(chart) -> None:
    """With such a label, each change of the leader would begin the time of an alert again."""
    about_jobs = [rule for rule in rules(chart, ALERTS) if "$labels.name" in rule["annotations"]["summary"]]

    assert len(about_jobs) == 8
    for rule in about_jobs:
        assert re.match(r"\(*(max|sum) by \((namespace, )?name\) ", rule["expr"])


def test_thresholds_are_values_of_the_chart(chart) -> None:
    thresholds = {"noProgressFor": "7m", "waitsFor": "3h", "minGoodput": 0.25}
    alerts = {"metrics": {"alerts": {"enabled": True, **thresholds}}}
    found = {rule["alert"]: rule for rule in rules(chart, alerts)}

    assert found["TrainingJobMakesNoProgress"]["for"] == "7m"
    assert found["TrainingJobWaits"]["for"] == "3h"
    assert " < 0.25 " in found["TrainingJobGoodputLow"]["expr"]


def test_alerts_are_off_by_default_and_follow_the_webhook(chart) -> None:
    assert not any(item["kind"] == "PrometheusRule" for item in chart.objects({}))
    names = {rule["alert"] for rule in rules(chart, {**ALERTS, "webhook": {"enabled": False}})}
    assert "TrainingJobWebhookDown" not in names


def test_limited_namespaces_have_an_alert_that_names_an_exported_metric(chart) -> None:
    (*others, last) = rules(chart, ALERTS)

    assert last["alert"] == "TrainingJobNamespaceUnreadable"
    assert others == rules(chart, {"metrics": ALERTS["metrics"]})
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
