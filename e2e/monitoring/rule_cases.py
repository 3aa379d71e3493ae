"""Situations for the alert rules of the chart: hours of simulated samples, which promtool evaluates.

Each alert has situations in which it fires, and situations in which it must not: a job is suspended, waits, is over, or
has another leader.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.run_program import ClusterError
from e2e.monitoring.prometheus import BUILD

FIRST, SECOND = "trainingjob-operator-0", "trainingjob-operator-1"
"""Pods of the operator. The first leads at the beginning."""


@dataclass(frozen=True)
class RuleCase:
    """Series with one sample a minute, in promtool's notation, and the minutes at which the alert fires or does not."""

    alert: str
    situation: str
    series: Mapping[str, str]
    fires: Mapping[int, bool]


def of_job(metric: str, pod: str = FIRST, **labels: str) -> str:
    """Return the name of a series of a job, as Prometheus scrapes it from a pod of the operator."""
    return of_pod(metric, pod, namespace="research", name="llama", **labels)


def of_pod(metric: str, pod: str = FIRST, **labels: str) -> str:
    """Return the name of a series of a pod."""
    text = ", ".join(f'{name}="{value}"' for name, value in {**labels, "pod": pod}.items())
    return f"trainingjob_{metric}{{{text}}}"


def in_phase(phase: str, values: str = "1x200") -> dict[str, str]:
    """Return the series of a job that stays in a phase."""
    return {of_job("phase", phase=phase): values}


def with_new_leader(minute: int, series: Mapping[str, str]) -> dict[str, str]:
    """Return series of one constant value each, which another pod exports from a minute on, after a gap of a minute."""
    found = {}
    for name, values in series.items():
        value = values.partition("x")[0]
        found[name] = f"{value}x{minute} stale"
        found[name.replace(FIRST, SECOND)] = f"_x{minute + 1} {value}x200"
    return found


STUCK = {**in_phase("Running"), of_job("step"): "7x200", of_job("slices"): "2x200"}
FLAPPING = {
    of_job("phase", phase="Running"): "1 _ _ " * 60,
    of_job("phase", phase="Recovering"): "_ 1 1 " * 60,
    of_job("step"): "7x200",
    of_job("slices"): "2 0 0 " * 60,
}
FAILED = {**in_phase("Failed", "1x1600"), of_job("completion_timestamp_seconds"): "0x1600"}
SAVES_FAIL = {of_job("checkpoint_failing"): "1x60"}
RESTARTS = of_job("restarts_total", reason="Crash")


def spends(**buckets: str) -> dict[str, str]:
    """Return the series of the seconds by bucket."""
    return {of_job("goodput_seconds", bucket=bucket): values for bucket, values in buckets.items()}


CASES = (
    RuleCase("TrainingJobFailed", "a job failed", FAILED, {1: True, 600: True, 1500: False}),
    RuleCase("TrainingJobFailed", "a job succeeded", {**in_phase("Succeeded")}, {60: False}),
    RuleCase("TrainingJobWaits", "a job never trained", in_phase("Queued"), {55: False, 65: True}),
    RuleCase("TrainingJobWaits", "its spec is invalid", in_phase("Invalid"), {65: True}),
    RuleCase("TrainingJobWaits", "the operator never saw it", in_phase("New"), {65: True}),
    RuleCase("TrainingJobWaits", "its nodes do not come back", in_phase("Recovering"), {65: True}),
    RuleCase("TrainingJobWaits", "the leader changes", with_new_leader(30, in_phase("Queued")), {55: False, 65: True}),
    RuleCase("TrainingJobWaits", "a job trains", in_phase("Degraded"), {65: False}),
    RuleCase("TrainingJobWaits", "a job is suspended", in_phase("Suspended"), {65: False}),
    RuleCase("TrainingJobWaits", "a job is over", in_phase("Failed"), {65: False}),
    RuleCase(
        "TrainingJobWaits",
        "a job tokenizes its text",
        {**in_phase("Preparing"), of_job("prepared_bytes"): "0+5x200"},
        {150: False},
    ),
    RuleCase(
        "TrainingJobWaits",
        "a job tokenizes a large compressed file",
        {**in_phase("Preparing"), of_job("prepared_bytes"): "5x200", of_job("prepared_tokens"): "0+900x200"},
        {150: False},
    ),
    RuleCase(
        "TrainingJobWaits",
        "the tokenization stands still",
        {**in_phase("Preparing"), of_job("prepared_bytes"): "5x200", of_job("prepared_tokens"): "9x200"},
        {65: True},
    ),
    RuleCase("TrainingJobMakesNoProgress", "no number of steps is known", STUCK, {25: False, 35: True}),
    RuleCase("TrainingJobMakesNoProgress", "steps are left", STUCK | {of_job("steps"): "9x200"}, {35: True}),
    RuleCase("TrainingJobMakesNoProgress", "the leader changes", with_new_leader(20, STUCK), {25: False, 35: True}),
    RuleCase("TrainingJobMakesNoProgress", "each world ends without a step", FLAPPING, {45: True}),
    RuleCase("TrainingJobMakesNoProgress", "a job trains", STUCK | {of_job("step"): "0+3x200"}, {60: False}),
    RuleCase("TrainingJobMakesNoProgress", "the last step is trained", STUCK | {of_job("steps"): "7x200"}, {60: False}),
    RuleCase(
        "TrainingJobMakesNoProgress",
        "a world tokenizes its text",
        STUCK | {of_job("prepared_bytes"): "0+5x200"},
        {60: False},
    ),
    RuleCase(
        "TrainingJobMakesNoProgress",
        "a world tokenizes a large compressed file",
        STUCK | {of_job("prepared_bytes"): "5x200", of_job("prepared_tokens"): "0+900x200"},
        {60: False},
    ),
    *(
        RuleCase(
            "TrainingJobMakesNoProgress",
            f"a job is {phase.lower()} after it trained",
            {
                of_job("step"): "0+1x20 20x200",
                of_job("slices"): "2x20 0x200",
                of_job("phase", phase="Running"): "1x20 stale",
                of_job("phase", phase=phase): "_x21 1x200",
            },
            dict.fromkeys((40, 60, 90, 150), False),
        )
        for phase in ("Suspended", "Queued", "Failed", "Succeeded")
    ),
    RuleCase("TrainingJobSavesFail", "saves fail", SAVES_FAIL, {10: False, 20: True}),
    RuleCase("TrainingJobSavesFail", "the leader changes", with_new_leader(8, SAVES_FAIL), {10: False, 20: True}),
    RuleCase("TrainingJobSavesFail", "the job fails for it", {of_job("checkpoint_failing"): "1x18 stale"}, {30: False}),
    RuleCase("TrainingJobSavesFail", "saves succeed", {of_job("checkpoint_failing"): "0x60"}, {30: False}),
    RuleCase(
        "TrainingJobCopiesFail",
        "exports fail",
        {of_job("backup_failing"): "0x60", of_job("export_failing"): "1x60"},
        {10: False, 20: True},
    ),
    RuleCase("TrainingJobCopiesFail", "backups fail", {of_job("backup_failing"): "1x60"}, {20: True}),
    RuleCase("TrainingJobCopiesFail", "both succeed", {of_job("backup_failing"): "0x60"}, {20: False}),
    RuleCase(
        "TrainingJobGoodputLow",
        "two of three seconds are lost",
        {**in_phase("Running"), **spends(training="0+20x200", down="0+40x200")},
        {50: False, 70: True},
    ),
    RuleCase(
        "TrainingJobGoodputLow",
        "a job that trained for a day has no nodes now",
        {
            of_job("phase", phase="Running"): "1x1440 stale",
            of_job("phase", phase="Recovering"): "_x1441 1x200",
            **spends(training="0+60x1440 86400x200", down="0x1440 0+60x200"),
        },
        {1440: False, 1500: True},
    ),
    RuleCase(
        "TrainingJobGoodputLow",
        "the leader changes within the hour",
        {
            **in_phase("Running"),
            **spends(training="0+20x50 stale", down="0+40x50 stale"),
            of_job("goodput_seconds", SECOND, bucket="training"): "_x52 1040+20x150",
            of_job("goodput_seconds", SECOND, bucket="down"): "_x52 2080+40x150",
        },
        {80: True},
    ),
    RuleCase(
        "TrainingJobGoodputLow",
        "a job trains after half a day in a queue",
        {
            of_job("phase", phase="Queued"): "1x720 stale",
            of_job("phase", phase="Running"): "_x721 1x200",
            **spends(queued="0+60x720 43200x200", training="0x720 0+55x200", starting="0x720 0+5x200"),
        },
        dict.fromkeys((715, 730, 760, 780, 850), False),
    ),
    RuleCase(
        "TrainingJobGoodputLow",
        "a job is suspended after bad hours",
        {
            of_job("phase", phase="Running"): "1x20 stale",
            of_job("phase", phase="Suspended"): "_x21 1x200",
            **spends(training="100x200", down="0+60x20 1200x200", suspended="0x20 0+60x200"),
        },
        {30: False, 70: False, 90: False},
    ),
    RuleCase(
        "TrainingJobGoodputLow",
        "a job that trains has lost an hour before",
        {**in_phase("Running"), **spends(training="0x60 0+60x200", down="0+60x60 3600x200")},
        {150: False},
    ),
    RuleCase("TrainingJobRestartsOften", "a job restarts again and again", {RESTARTS: "0+1x60"}, {30: True}),
    RuleCase("TrainingJobRestartsOften", "the first series has six restarts", {RESTARTS: "_x10 6x60"}, {20: True}),
    RuleCase("TrainingJobRestartsOften", "three restarts", {RESTARTS: "0x10 3x60"}, {30: False}),
    RuleCase(
        "TrainingJobRestartsOften",
        "a standby takes over a job with many restarts, and sees one",
        {RESTARTS: "19x100 stale", RESTARTS.replace(FIRST, SECOND): "_x105 1x60"},
        dict.fromkeys((99, 106, 120, 160), False),
    ),
    RuleCase(
        "TrainingJobRowsRefused",
        "a row of both programs",
        {of_pod("refused_presets", pod, name="team-1b"): "1x60" for pod in (FIRST, "trainingjob-operator-webhook-0")},
        {10: True},
    ),
    RuleCase("TrainingJobRowsRefused", "no row", {of_pod("leading"): "1x60"}, {10: False}),
    RuleCase("TrainingJobOperatorHasNoLeader", "all wait", {of_pod("leading"): "0x60"}, {10: True}),
    RuleCase("TrainingJobOperatorHasNoLeader", "no pod is scraped", {}, {10: True}),
    RuleCase(
        "TrainingJobOperatorHasNoLeader",
        "another one leads",
        {of_pod("leading"): "1x5 0x60", of_pod("leading", SECOND): "0x6 1x60"},
        dict.fromkeys((4, 6, 12, 30), False),
    ),
    RuleCase("TrainingJobReconcilesFail", "each fails", {of_pod("reconcile_errors_total"): "0+1x60"}, {50: True}),
    RuleCase("TrainingJobReconcilesFail", "one failed", {of_pod("reconcile_errors_total"): "0 1x60"}, {50: False}),
    RuleCase(
        "TrainingJobNamespaceUnreadable",
        "one is",
        {of_pod("unreadable_namespaces"): "0x5 1x60", of_pod("unreadable_namespaces", SECOND): "0x65"},
        {15: False, 25: True},
    ),
    RuleCase("TrainingJobNamespaceUnreadable", "none is", {of_pod("unreadable_namespaces"): "0x60"}, {40: False}),
    RuleCase("TrainingJobWebhookDown", "no pod is scraped", {of_pod("build_info"): "1x60"}, {10: True}),
    RuleCase(
        "TrainingJobWebhookDown",
        "one pod is scraped",
        {of_pod("build_info", "trainingjob-operator-webhook-0"): "1x60"},
        {10: False},
    ),
)


def check_rules(folder: Path, rules: Any) -> None:
    """Evaluate all cases with promtool.

    Raises:
        ClusterError: promtool cannot be built, or an alert fires where it must not, or does not where it must.
    """
    BUILD.ensure(["promtool"])
    (folder / "rules.json").write_text(json.dumps(rules))
    (folder / "cases.json").write_text(
        json.dumps({"rule_files": ["rules.json"], "tests": [_test(case) for case in CASES]})
    )
    command = [str(BUILD.binaries / "promtool"), "test", "rules", str(folder / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{done.stdout}\n{done.stderr}")


def _test(case: RuleCase) -> dict[str, Any]:
    """Return a case as promtool reads it: the number of firing alerts at each minute. Its errors show the comment."""
    name = f"{case.alert}: {case.situation}"
    firing = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) or vector(0) # {name}'
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": int(fires)}]}
            for minute, fires in case.fires.items()
        ],
    }
