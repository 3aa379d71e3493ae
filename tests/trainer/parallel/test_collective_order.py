"""The order of collectives: values stay what they are, and only CPU programs over several devices have one."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.training import flat, spec_with
from tests.trainer.models.test_kernels import prepare
from tests.trainer.test_step import LAYOUTS
from trainingjob_trainer.objectives.batch_sums import BatchSums
from trainingjob_trainer.parallel import collective_order
from trainingjob_trainer.parallel.collective_order import order_collectives, order_first_part, order_last_part


def fake_mesh(platform: str, size: int) -> Any:
    device = SimpleNamespace(platform=platform)
    return SimpleNamespace(size=size, devices=np.array([device] * size))


@pytest.mark.parametrize("mesh", [fake_mesh("tpu", 8), fake_mesh("cuda", 8), fake_mesh("cpu", 1)])
def test_other_platforms_and_single_devices_need_no_order(mesh: Any) -> None:
    tree = {"x": jnp.ones(3)}

    assert order_collectives(tree, jnp.ones(2), mesh=mesh) is tree
    assert order_first_part(jnp.sum, mesh) is jnp.sum
    assert order_last_part(jnp.where, mesh) is jnp.where


@pytest.mark.thorough
def test_the_ordered_step_computes_the_gradients_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, state, batch = prepare(spec_with(), LAYOUTS["data 2 over slices, fsdp 4"])
    sums: BatchSums = steps._sums
    ordered = jax.jit(partial(sums.compute_gradients)).lower(state.params, batch)
    monkeypatch.setattr(collective_order, "_needs_order", lambda mesh: False)
    plain = jax.jit(partial(sums.compute_gradients)).lower(state.params, batch)

    assert len(ordered.as_text()) > len(plain.as_text())
    want, found = (flat(one.compile()(state.params, batch)) for one in (plain, ordered))
    assert {name for name in want if not np.allclose(found[name], want[name], rtol=1e-5, atol=1e-6)} == set()
