"""What the journeys read of the operator on a cluster."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from e2e.cluster.existing import ExistingCluster
from e2e.product import Product

SINCE = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CALM = '{"time": "t", "level": "warning", "message": "no error, by its level"}'
BROKEN = '{"time": "t", "level": "error", "message": "reconcile failed"}'
RAW = "Traceback (most recent call last):"


def make_pod(name: str, phase: str = "Running", **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "status": {"phase": phase}}


def test_errors_are_found_in_the_logs_of_operators_and_webhooks_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ExistingCluster()
    pods = [make_pod("old"), make_pod("new"), make_pod("going", deletionTimestamp="t"), make_pod("coming", "Pending")]
    webhooks = [make_pod("webhook"), make_pod("next", "Pending")]
    logs = {"old": f"{CALM}\n{BROKEN}\n", "new": f"{RAW}\n{CALM}", "webhook": f"{CALM}\n{BROKEN}\n"}
    requested: list[tuple[str, ...]] = []

    def kubectl(*words: str) -> str:
        requested.append(words)
        if words[0] == "logs":
            return logs[words[1]]
        return json.dumps({"items": webhooks if "app.kubernetes.io/name=trainingjob-webhook" in words else pods})

    monkeypatch.setattr(cluster, "kubectl", kubectl)

    assert Product(cluster).operator_errors(SINCE) == [BROKEN, RAW, BROKEN]
    assert all("--since-time=2026-11-21T12:00:00+00:00" in words for words in requested if words[0] == "logs")
