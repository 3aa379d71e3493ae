"""The frame of the benchmarks of pauses: the order of losses and recoveries, and the selection of losses."""

import pytest
from rich.console import Console

from e2e.benchmarks import pauses, restart_pauses, restart_pods
from e2e.benchmarks.pauses import FIRST, BenchmarkReport, Loss, Pause, measure_losses, select_losses

LOSSES = {
    FIRST: Loss("kill", 10.0, back="first slice back", runs=1),
    "hang": Loss("hang", 2.0, runs=2),
    "standby": Loss("kill", 0.5, has_hot_standby=True),
}


class Target:
    """Records what it is called for; each pause is a second longer than the one before it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _record(self, call: str) -> Pause:
        self.calls.append(call)
        return Pause(float(len(self.calls)), 0, {}, by_hot_standby=False)

    async def wait_until_steady(self, *, has_hot_standby: bool) -> None:
        self._record("wait")

    async def lose(self, loss: Loss[str]) -> Pause:
        return self._record(loss.inject)

    async def recover(self, loss: Loss[str]) -> Pause:
        return self._record("recover")


async def test_each_loss_follows_a_steady_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "write", lambda name, figures: None)
    target, report = Target(), BenchmarkReport("test", Console(quiet=True))

    await measure_losses(target, select_losses(LOSSES, has_hot_standby=False), report)

    assert target.calls == ["wait", "kill", "recover", "wait", "hang", "wait", "hang"]
    assert {figure.name: (figure.value, figure.against) for figure in report.figures if "median" in figure.name} == {
        "first loss: median": (2.0, 10.0),
        "first slice back: median": (3.0, pauses.BACK_GOAL),
        "hang: median": (6.0, 2.0),
    }


def test_the_first_loss_precedes_selected_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "ONLY", ["hang"])

    assert list(select_losses(LOSSES, has_hot_standby=False)) == [FIRST, "hang"]
    assert list(select_losses(LOSSES, has_hot_standby=True)) == []


def test_local_and_cluster_losses_of_one_name_have_one_goal() -> None:
    local, pods = restart_pauses.LOSSES, restart_pods.LOSSES
    common = local.keys() & pods.keys()

    assert len(common) >= 5
    assert {name: local[name].goal for name in common} == {name: pods[name].goal for name in common}
    assert {name: local[name].back for name in common} == {name: pods[name].back for name in common}
