"""What snapshots cost while training: measured; where it is more than they are worth, they lie further apart."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.support.trainer.tiny import make_layout, make_world
from tests.support.trainer.training import spec_with
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.snapshots import snapshotter as snapshots_module
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import Signal, State
from trainingjob_trainer.step import StepPrograms

EVERY = 5
SHORT, LONG = 4.0, 40.0
"""Seconds a step. A snapshot takes one: after each five steps that is 4.5 % of the time, or 0.5 %."""


class Trained:
    """A host that trains and takes snapshots, with a simulated clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.now = 0.0
        monkeypatch.setattr(snapshots_module, "time", SimpleNamespace(monotonic=self._look))
        described = StepPrograms(spec_with(), build_mesh(jax.devices()[:2], make_layout())).state_shapes
        self._state: State = jax.tree.map(
            lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), described
        )
        self.snapshots = Snapshots(
            str(folder), EVERY, make_world(1, 1), "index", described, Shards(described), max_every=most
        )
        self.snapshots.begin(None, Provenance())
        self.step = 0

    def train(self, steps: int, seconds: float) -> list[int]:
        """Return after which steps a snapshot was taken."""
        taken = []
        for _ in range(steps):
            self.step += 1
            self.now += seconds
            if self.snapshots.is_due(self.step):
                self.snapshots.take(self.step, self._state)
                taken.append(self.step)
        return taken

    def _look(self) -> float:
        self.now += 1.0
        return self.now


type Begin = Callable[[int], Trained]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Return a function that begins to train, where up to so many steps may lie between two snapshots."""
    begun: list[Trained] = []

    def start(most: int) -> Trained:
        begun.append(Trained(tmp_path, monkeypatch, most))
        return begun[-1]

    yield start
    for one in begun:
        one.snapshots.close()


@pytest.mark.parametrize(("seconds", "is_told"), [(SHORT, True), (LONG, False)])
def test_snapshots_above_their_share_of_time_are_reported_once(
    seconds: float, is_told: bool, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    trained = begin(0)

    trained.train(26 * EVERY, seconds)

    reported = [line for line in caplog.messages if "snapshots block training" in line]
    assert len(reported) == int(is_told)
    assert not reported or "blocked_share=0.0455 limit=0.0100" in reported[0]
    assert trained.snapshots.stretch_signal() is Signal.NONE, "the job itself says how many steps lie between them"


def test_interval_of_the_plan_grows_until_snapshots_are_worth_their_cost(begin: Begin) -> None:
    trained = begin(100)
    trained.train(15 * EVERY, SHORT)
    assert trained.snapshots.stretch_signal() is Signal.STRETCH_SNAPSHOTS

    intervals = []
    while trained.snapshots.stretch_signal() and len(intervals) < 10:
        trained.snapshots.apply_stretch(trained.step, Signal.STRETCH_SNAPSHOTS)
        assert trained.snapshots.stretch_signal() is Signal.NONE, "it is measured anew first"
        first, second, *_ = trained.train(20 * 4 * EVERY, SHORT)
        intervals.append(second - first)

    assert intervals == [10, 20, 40], "after 40 steps of 4 s a second is 0.6 %"


def test_cheap_snapshots_request_no_change(begin: Begin) -> None:
    trained = begin(100)

    trained.train(26 * EVERY, LONG)

    assert trained.snapshots.stretch_signal() is Signal.NONE


def test_they_lie_no_further_apart_than_they_may(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    trained = begin(10)
    trained.train(15 * EVERY, SHORT)
    trained.snapshots.apply_stretch(trained.step, Signal.STRETCH_SNAPSHOTS)

    trained.train(40 * EVERY, SHORT)

    assert trained.snapshots.stretch_signal() is Signal.NONE
    assert sum("snapshots block training" in line for line in caplog.messages) == 1, "what cannot be helped is told"


def test_successive_requests_of_hosts_are_one_change(begin: Begin) -> None:
    trained = begin(100)

    for step in (21, 22):
        trained.snapshots.apply_stretch(step, Signal.STRETCH_SNAPSHOTS | Signal.EXIT)

    trained.step = 22
    assert trained.train(28, SHORT) == [30, 40, 50]
