"""What snapshots cost while training: measured, and told where it is more than they are worth."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.tiny import make_layout, make_world
from tests.trainer.training import spec_with
from trainingjob_trainer import snapshots as snapshots_module
from trainingjob_trainer.history import Past
from trainingjob_trainer.mesh import build_mesh
from trainingjob_trainer.shards import Shards
from trainingjob_trainer.snapshots import Snapshots
from trainingjob_trainer.step import Steps


@pytest.mark.parametrize(("between", "is_told"), [(20.0, True), (200.0, False)])
def test_snapshots_that_cost_more_than_their_share_are_told_of_once(
    between: float, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]

    def look() -> float:  # by this clock a copy takes a second
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(snapshots_module, "time", SimpleNamespace(monotonic=look))
    layout = make_layout()
    described = Steps(spec_with(), build_mesh(jax.devices()[:2], layout)).state
    state = jax.tree.map(lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), described)
    snapshots = Snapshots(str(tmp_path), 5, make_world(1, 1), "index", described, Shards(described))
    snapshots.begin(None, Past())
    for step in range(5, 5 * 26, 5):
        clock[0] += between
        snapshots.take(step, state)
    snapshots.close()

    told = [line for line in caplog.messages if "more than 1 %" in line]
    assert len(told) == int(is_told)
    assert not told or "wait for 4.5 % of the time" in told[0]
