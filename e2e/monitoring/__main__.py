"""Check the dashboard and the alert rules of the chart on a real Prometheus: `make check-alerts`.

promtool evaluates each alert in situations of hours: `e2e/monitoring/rule_cases.py`. Then Prometheus scrapes the
registries of the operator and the webhook, with jobs that are well. Each query of the dashboard must return series, and
no alert may be active. Then everything goes wrong, and each alert must become active that looks at less than an hour.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import start_http_server

from e2e.cluster.binaries import binaries_dir, ensure_binaries
from e2e.cluster.run_program import ClusterError, free_port, run, wait_until
from e2e.monitoring.prometheus import Prometheus, running_prometheus
from e2e.monitoring.rule_cases import CASES, check_rules
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.added_values import InvalidRow
from trainingjob_operator.shell.kinds import TRAINING_JOB
from trainingjob_operator.shell.metrics import Metrics, WebhookMetrics
from trainingjob_operator.shell.store import KindStore

CHART = Path(__file__).parents[2] / "charts/trainingjob"
VALUES = ("metrics.alerts.enabled=true", "metrics.dashboard.enabled=true", "watch.namespaces={research,bio}")
OPERATOR_POD, WEBHOOK_POD = "trainingjob-operator-0", "trainingjob-operator-webhook-0"
TIMEOUT_SECONDS = 60.0
WELL: dict[str, Any] = {
    "loss": 2.5,
    "tokensPerSecond": 4100.0,
    "stepSeconds": 0.5,
    "mfu": 0.41,
    "dataLoadingShare": 0.2,
    "skipped": 0,
    "saveSeconds": 1.5,
}
HOURLY = frozenset({"TrainingJobGoodputLow"})
"""Alerts that compare with an hour ago: promtool alone can show that they fire."""
CAUSES = ("NodeLost", "PodDeleted", "PodFailed", "ContainerExited", "HeartbeatLost", "HungHost")
"""Causes of restarts, one each: the series of a cause begins with its first restart."""


class Exporters:
    """The operator and its webhook, as Prometheus sees them."""

    def __init__(self) -> None:
        started = datetime.now(UTC)
        self._created = format_time(started + timedelta(seconds=1))
        self._jobs = KindStore(TRAINING_JOB)
        self._version = 0
        self.operator, self.webhook = Metrics("1"), WebhookMetrics("1")
        self.operator.register_jobs(self._jobs, lambda: datetime.now(UTC))
        self.operator.register_queue(lambda: 0.0)
        self._num_unreadable = 0
        self.operator.register_unreadable_namespaces(lambda: self._num_unreadable)
        self.operator.leader.set(1)
        self.ports = {pod: free_port() for pod in (OPERATOR_POD, WEBHOOK_POD)}
        self._servers = {
            pod: start_http_server(port, "127.0.0.1", metrics.registry)[0]
            for (pod, port), metrics in zip(self.ports.items(), (self.operator, self.webhook), strict=True)
        }

    def work(self) -> None:
        """Train a step, reconcile and review, as while all is well."""
        self._version += 1
        self._put("llama", {"ratio": 0.9, "seconds": {"training": 90.0}}, step=self._version, causes=1)
        self.operator.record_reconcile(0.01, has_failed=False)
        self.operator.record_api_error("409")
        self.webhook.record_review(0.01, is_allowed=True)

    def fail(self) -> None:
        """Lose the leader and the webhook, and let reconciles, jobs and their saves fail."""
        self._version += 1
        failing = {field: {"step": 7} for field in ("failingSaves", "failingCopies")}
        self._put("stuck", {"seconds": {"down": 90.0}}, step=7, causes=len(CAUSES), **failing)
        self._put("waiting", {"seconds": {"queued": 90.0}}, step=0, causes=0, phase="Queued", world=None)
        ended = {"phase": "Failed", "completionTime": format_time(datetime.now(UTC))}
        self._put("failed", {"seconds": {"training": 90.0}}, step=7, causes=0, **ended)
        self.operator.record_invalid_rows([InvalidRow("presets", "team-1b", "it is invalid")])
        self.operator.record_reconcile(0.01, has_failed=True)
        self._num_unreadable = 1
        self.operator.leader.set(0)
        self._stop(WEBHOOK_POD)

    def close(self) -> None:
        """Stop to serve metrics."""
        for pod in tuple(self._servers):
            self._stop(pod)

    def _stop(self, pod: str) -> None:
        if server := self._servers.pop(pod, None):
            server.shutdown()
            server.server_close()

    def _put(self, name: str, goodput: dict[str, Any], *, step: int, causes: int, **status: Any) -> None:
        metadata = {"name": name, "namespace": "research", "uid": name, "creationTimestamp": self._created}
        status = {
            "phase": "Running",
            "progress": {**WELL, "step": step, "of": 100_000},
            "goodput": goodput,
            "world": {"generation": 7, "slices": [0, 1]},
            "preparation": {"doneBytes": 5, "totalBytes": 5, "tokens": 5},
            "restarts": {"total": causes},
            "checkpoint": {"step": 1, "time": self._created},
            "straggler": {"ratio": 0.1},
            "nodes": [{"node": "a", "faults": 1}],
            "attempts": [
                {"generation": number, "cause": {"reason": reason}, "lostSteps": 1, "restarted": True}
                for number, reason in enumerate(CAUSES[:causes], 1)
            ],
            **status,
        }
        spec = {"slices": {"min": 1, "max": 4}}
        metadata["resourceVersion"] = str(self._version)
        self._jobs.put({"metadata": metadata, "spec": spec, "status": status})


def main() -> None:
    """Check all queries and rules. Exit with 1 if one of them is wrong."""
    start = time.monotonic()
    rules, queries = read_chart()
    exporters = Exporters()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            running_prometheus(Path(folder), free_port(), exporters.ports, rules) as prometheus,
        ):
            check_rules(Path(folder), rules)
            names = check(prometheus, exporters, queries)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    seconds = time.monotonic() - start
    sys.stdout.write(f"{len(queries)} queries, {len(names)} alerts in {len(CASES)} situations, in {seconds:.0f} s\n")


def read_chart() -> tuple[Any, list[str]]:
    """Return the rule groups and the queries of the dashboard that helm renders."""
    ensure_binaries(["helm"])
    flags = [f"--set={value}" for value in VALUES]
    manifests = [
        manifest
        for manifest in yaml.safe_load_all(run([binaries_dir() / "helm", "template", "trainingjob", CHART, *flags]))
        if manifest
    ]
    (rules,) = [manifest["spec"] for manifest in manifests if manifest["kind"] == "PrometheusRule"]
    (board,) = [manifest["data"] for manifest in manifests if "trainingjob.json" in manifest.get("data", {})]
    panels = json.loads(board["trainingjob.json"])["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    return rules, [expression.replace("$namespace", ".*").replace("$name", ".*") for expression in expressions]


def check(prometheus: Prometheus, exporters: Exporters, queries: list[str]) -> list[str]:
    """Check queries and alerts; return the names of the alerts.

    Raises:
        ClusterError: a query returns nothing or is invalid, or an alert has the wrong state.
    """

    def settled(change: Callable[[], None], find: Callable[[], list[str]], what: str) -> None:
        def is_settled() -> bool:
            change()
            if wrong := find():
                raise ClusterError(", ".join(wrong))
            return True

        wait_until(is_settled, what, seconds=TIMEOUT_SECONDS)

    def in_states(*states: str) -> list[str]:
        return [name for name, state in prometheus.alert_states().items() if state in states]

    def not_active() -> list[str]:
        return [name for name in in_states("inactive") if name not in HOURLY]

    settled(
        exporters.work, lambda: [query for query in queries if not prometheus.query(query)], "series of all queries"
    )
    settled(exporters.work, lambda: in_states("pending", "firing"), "no alert to be active while all is well")
    settled(exporters.fail, not_active, "all alerts to be active")
    return list(prometheus.alert_states())


if __name__ == "__main__":
    main()
