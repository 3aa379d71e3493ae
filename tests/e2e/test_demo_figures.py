"""The figures of the demo's benchmark: lines of evaluations are no steps."""

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from e2e.benchmarks import demo
from e2e.demo import ScenarioResult, SliceOutage

LINES = [
    {"generation": 1, "step": 0, "time": 5.0, "evaluation": "validation"},
    {"generation": 1, "step": 1, "time": 10.0, "loss": 4.0},
    {"generation": 1, "step": 2, "time": 12.0, "loss": 3.9},
    {"generation": 2, "step": 3, "time": 20.0, "loss": 3.8},
    {"generation": 2, "step": 3, "time": 25.0, "evaluation": "validation"},
    {"generation": 3, "step": 3, "time": 26.0, "evaluation": "validation"},
    {"generation": 3, "step": 4, "time": 30.0, "loss": 3.7},
]


class Product:
    """Submits a job that has lived already."""

    def submit(self, namespace: str, manifest: Any) -> Any:
        return SimpleNamespace(status=lambda: {"attempts": [{"generation": 3, "lostSteps": 0}]})


def test_only_training_steps_begin_and_end_the_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    story = ScenarioResult(applied=0.0, faults=(SliceOutage(1, 13.0, 22.0, 2, 3),), ended=40.0)
    monkeypatch.setattr(demo, "run_scenario", lambda *_, **__: story)
    monkeypatch.setattr(demo, "read_metrics", lambda *_: LINES)

    figures = demo.measure_cluster(Product(), Console(quiet=True))  # type: ignore[arg-type]

    assert [figure.value for figure in figures] == [10.0, 7.0, 8.0, 10.0, 0]
