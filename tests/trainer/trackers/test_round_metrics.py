"""Metrics of replicas: who writes the lines of a round, and when its files are open."""

import json
import threading
from typing import Any

import pytest

from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.object_store import ObjectStore
from tests.trainer.trackers.test_metrics_file import JOB
from tests.trainer.trackers.test_tracker import Destination
from trainingjob_api.spec.metrics import Metrics
from trainingjob_trainer.store.port import Log
from trainingjob_trainer.trackers import round_metrics, tracker
from trainingjob_trainer.trackers.round_metrics import RoundMetrics
from trainingjob_trainer.trackers.tracker import Run, TrackerThread


class CountingStore(ObjectStore):
    """A store that counts how often the metrics file is open."""

    num_open = 0

    def open_log(self, name: str) -> Log:
        log = super().open_log(name)
        if name != "metrics/metrics.jsonl":
            return log
        self.num_open += 1
        close = log.close

        def count() -> None:
            self.num_open -= 1
            close()

        log.close = count  # type: ignore[method-assign]
        return log


def make_metrics(store: ObjectStore, generation: int) -> RoundMetrics:
    return RoundMetrics(Metrics(every_steps=1), Run(JOB, store, 0), generation)


def train_round(metrics: RoundMetrics, *steps: int) -> None:
    metrics.begin_round()
    for step in steps:
        metrics.write_step({"time": 1.0, "generation": 0, "step": step, "loss": 2.0})
    metrics.write_norms(steps[-1], {"scale": 1.0})


def read_steps(store: ObjectStore) -> list[Any]:
    lines = map(json.loads, store.objects["metrics/metrics.jsonl"].splitlines())
    return [(line["step"], name) for line in lines for name in ("loss", "scale", "evaluation") if name in line]


def test_one_replica_writes_each_round_and_another_takes_over() -> None:
    store = CountingStore()
    with make_metrics(store, 1) as first, make_metrics(store, 2) as second:
        for one in (first, second):
            train_round(one, 1, 2)
        assert store.objects.keys() == set(), "the round may still be lost"
        first.end_round(is_writer=True)
        second.end_round(is_writer=False)
        for one in (first, second):
            one.write_evaluation(2, "held", {"loss": 1.0})
            train_round(one, 3, 4)
        assert read_steps(store) == [(1, "loss"), (2, "loss"), (2, "scale"), (2, "evaluation")]
        assert store.num_open == 0, "another replica may write the next round"
        first.end_round(is_writer=False)  # its delta came too late
        second.end_round(is_writer=True)
        second.flush()

    assert read_steps(store)[4:] == [(3, "loss"), (4, "loss"), (4, "scale")]


def test_trackers_begin_with_the_first_round_that_the_replica_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Run] = []
    monkeypatch.setattr(round_metrics, "open_trackers", lambda metrics, run: runs.append(run) or [])
    with make_metrics(ObjectStore(), 1) as metrics:
        for steps, is_writer in (((1, 2), False), ((3, 4), True), ((5, 6), True)):
            train_round(metrics, *steps)
            metrics.end_round(is_writer=is_writer)

    assert [run.restored for run in runs] == [2]


def test_trackers_are_closed_once_another_replica_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    destinations: list[Destination] = []

    def open_trackers(_: Metrics, run: Run) -> list[TrackerThread]:
        runs.append(run.restored)
        destinations.append(Destination())
        return [TrackerThread("server", destinations[-1])]

    monkeypatch.setattr(round_metrics, "open_trackers", open_trackers)
    with make_metrics(ObjectStore(), 1) as metrics:
        rounds = ((1, 2), True), ((3, 4), False), ((5, 6), False), ((7, 8), True), ((9, 10), True)
        for steps, is_writer in rounds:
            train_round(metrics, *steps)
            metrics.end_round(is_writer=is_writer)

    assert runs == [0, 6]
    assert [(one.points, one.closed) for one in destinations] == [([1, 2, 2], True), ([7, 8, 8, 9, 10, 10], True)]


def test_trackers_that_are_still_closing_are_closed_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    destination = Destination(write=lambda _: answers.wait(ENDLESS_SECONDS))
    monkeypatch.setattr(round_metrics, "open_trackers", lambda *_: [TrackerThread("server", destination)])
    monkeypatch.setattr(tracker, "CLOSE_SECONDS", 0.01)
    with make_metrics(ObjectStore(), 1) as metrics:
        for first, is_writer in ((1, True), (2, False), (3, False)):
            train_round(metrics, first)
            metrics.end_round(is_writer=is_writer)

    assert caplog.messages == ["last metrics not sent tracker=server"]
    answers.set()


def test_a_store_that_does_not_respond_costs_the_lines_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore()
    with make_metrics(store, 1) as metrics:
        for first, broken in ((1, True), (3, False)):
            with monkeypatch.context() as patched:
                if broken:
                    patched.setattr(store, "open_log", fail)
                train_round(metrics, first)
                metrics.end_round(is_writer=True)

    assert read_steps(store) == [(3, "loss"), (3, "scale")]


def fail(name: str) -> None:
    raise OSError(28, "No space left on device")
