"""The check of the dashboard and the alert rules, with a Prometheus that a test plays."""

from typing import Any

import pytest
from prometheus_client import generate_latest

from e2e.cluster.run_program import ClusterError
from e2e.monitoring import __main__ as alert_check
from e2e.monitoring.__main__ import Exporters, check


class FakePrometheus:
    """Evaluates a query as the presence of its text in the metrics, and one alert as the loss of the leader."""

    def __init__(self, exporters: Exporters, *, fires: bool | None = None) -> None:
        self._exporters, self._fires = exporters, fires

    def _metrics(self) -> str:
        return generate_latest(self._exporters.operator.registry).decode()

    def query(self, expression: str) -> list[Any]:
        return [expression] if expression in self._metrics() else []

    def alert_states(self) -> dict[str, str]:
        fires = "trainingjob_leading 0.0" in self._metrics() if self._fires is None else self._fires
        return {"NoLeader": "pending" if fires else "inactive"}


@pytest.fixture
def exporters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alert_check, "TIMEOUT_SECONDS", 0.0)
    made = Exporters()
    yield made
    made.close()


def test_chart_that_is_right_passes(exporters: Exporters) -> None:
    prometheus: Any = FakePrometheus(exporters)

    assert check(prometheus, exporters, ["trainingjob_step", "trainingjob_mfu_ratio"]) == ["NoLeader"]


@pytest.mark.parametrize(
    ("fires", "query", "words"),
    [
        pytest.param(None, "trainingjob_stp", "series of all queries.*trainingjob_stp", id="an unknown metric"),
        pytest.param(True, "trainingjob_step", "no alert to be active.*NoLeader", id="an alert without a cause"),
        pytest.param(False, "trainingjob_step", "all alerts to be active.*NoLeader", id="an alert that never fires"),
    ],
)
def test_what_is_wrong_is_named(fires: bool | None, query: str, words: str, exporters: Exporters) -> None:
    prometheus: Any = FakePrometheus(exporters, fires=fires)

    with pytest.raises(ClusterError, match=words):
        check(prometheus, exporters, [query])
