"""The outer optimizer of replicas, against Optax and against DiLoCo in one process."""

from typing import Any

import numpy as np
import optax
import pytest

from trainingjob_trainer.replicas.outer_update import (
    NonFiniteDeltaError,
    OuterRates,
    begin_outer,
    compute_delta,
    mean_delta,
    update_outer,
)

RATES = {
    "defaults": OuterRates(0.3, 0.9),
    "no momentum": OuterRates(0.7, 0.0),
    "mean of the parameters": OuterRates(1.0, 0.0),
}


def random_shards(random: np.random.Generator) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {"matrix": (3, 4), "scale": (5,), "number": ()}
    return {name: np.asarray(random.normal(size=shape), np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES.keys())
def test_updates_are_those_of_optax(rates: OuterRates) -> None:
    random = np.random.default_rng(0)
    outer = begin_outer(random_shards(random))
    optimizer = optax.sgd(rates.learning_rate, momentum=rates.momentum, nesterov=True)
    params: Any = {name: shard.copy() for name, shard in outer.params.items()}
    state = optimizer.init(params)

    for _ in range(4):
        deltas = [random_shards(random) for _ in range(3)]
        means = {name: mean_delta(delta[name] for delta in deltas) for name in outer.params}
        updates, state = optimizer.update(means, state)
        params = optax.apply_updates(params, updates)
        update_outer(outer, means, rates)

    for name, shard in outer.params.items():
        np.testing.assert_allclose(shard, params[name], atol=1e-6)


def test_replicas_with_rate_one_and_no_momentum_take_the_mean_of_their_parameters() -> None:
    random = np.random.default_rng(1)
    outer = begin_outer(random_shards(random))
    replicas = [random_shards(random) for _ in range(3)]

    means = {
        name: mean_delta(compute_delta(name, shard, replica[name]) for replica in replicas)
        for name, shard in outer.params.items()
    }
    update_outer(outer, means, OuterRates(1.0, 0.0))

    for name, shard in outer.params.items():
        np.testing.assert_allclose(shard, np.mean([replica[name] for replica in replicas], axis=0), atol=1e-6)


def test_deltas_stay_unchanged() -> None:
    delta = np.ones(2, np.float32)

    assert mean_delta([delta, 3 * delta]).tolist() == [2.0, 2.0]
    assert delta.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_delta_must_be_finite(value: float) -> None:
    with pytest.raises(NonFiniteDeltaError, match="embedding must be finite"):
        compute_delta("embedding", np.zeros(2, np.float32), np.array([0, value], np.float32))


def test_a_round_needs_a_member() -> None:
    with pytest.raises(ValueError, match="at least one member"):
        mean_delta([])
