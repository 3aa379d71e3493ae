"""The outer optimizer in a checkpoint."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import Run, save_and_restore, spec_with
from trainingjob_trainer.parallel.host_memory import is_on_host
from trainingjob_trainer.replicas.outer_items import attach_outer, copy_shards, describe_outer, detach_outer
from trainingjob_trainer.replicas.outer_update import OuterState
from trainingjob_trainer.replicas.round_files import FIRST_BASE
from trainingjob_trainer.state import State

pytestmark = pytest.mark.thorough
SHARDED = make_layout(rows_per_shard=4)


@pytest.fixture
def run() -> Run:
    run = Run(spec_with(precision__params="bfloat16"), SHARDED)
    run.state = run.state._replace(step=jax.device_put(np.int32(2), run.state.step.sharding))
    return run


@pytest.fixture
def described(run: Run) -> State:
    shapes = run.steps.state_shapes
    return describe_outer(shapes, shapes.params)


def check_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, shard in one.items():
        np.testing.assert_array_equal(shard, other[name])
        assert shard.dtype == np.float32


def test_a_checkpoint_has_all_bits_of_the_outer_optimizer(tmp_path: Path, run: Run, described: State) -> None:
    random = np.random.default_rng(0)
    params, momentum = (
        {
            name: random.normal(size=shard.shape).astype(np.float32)
            for name, shard in copy_shards(run.state.params).items()
        }
        for _ in range(2)
    )
    base = "0123456789abcdef" * 4

    whole = attach_outer(run.state, described, OuterState(params, momentum), base)
    items: Any = (whole.outer_params, whole.outer_momentum)
    assert all(map(is_on_host, jax.tree.leaves(items)))
    state, outer, restored_base = detach_outer(save_and_restore(tmp_path, whole, described))

    assert (state.outer_params, state.outer_momentum, state.outer_base) == (None, None, None)
    assert restored_base == base
    check_equal(outer.params, params)
    check_equal(outer.momentum, momentum)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(run.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_checkpoint_of_a_job_without_replicas_begins_the_first_round(
    tmp_path: Path, run: Run, described: State
) -> None:
    _, outer, base = detach_outer(save_and_restore(tmp_path, run.state, described))

    assert base == FIRST_BASE
    check_equal(outer.params, copy_shards(run.state.params))
    assert not any(shard.any() for shard in outer.momentum.values())


def test_a_job_without_replicas_ignores_the_outer_optimizer(tmp_path: Path, run: Run, described: State) -> None:
    outer = OuterState(copy_shards(run.state.params), copy_shards(run.state.params))
    whole = attach_outer(run.state, described, outer, FIRST_BASE)

    restored = save_and_restore(tmp_path, whole, run.steps.state_shapes)

    assert restored.outer_params is None
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(run.state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
