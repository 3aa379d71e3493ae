"""The outer optimizer of DiLoCo (Douillard et al., arXiv 2311.08105): SGD with Nesterov momentum on mean deltas.

A delta is outer parameters minus the parameters of a replica. Everything is NumPy on the host, one rounded operation at
a time, so that the same deltas in the same order give bitwise equal results on all replicas. A compiled program may
fuse a product and a sum.

Arrays are shards: float32, any shape, by the name of the shard.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

type HostShards = dict[str, np.ndarray]
"""The shards of a process, float32, by name."""


class OuterRates(NamedTuple):
    """Hyperparameters of the outer optimizer."""

    learning_rate: float
    momentum: float


class OuterState(NamedTuple):
    """The state of the outer optimizer, on one process: its shards of the outer parameters and of the momentum."""

    params: HostShards
    momentum: HostShards


class NonFiniteDeltaError(ValueError):
    """A replica has parameters that are not finite; its delta would spread them to all others."""


def begin_outer(params: HostShards) -> OuterState:
    """Return the state before the first round, which owns the parameters that all replicas start with."""
    return OuterState(params, {name: np.zeros_like(shard) for name, shard in params.items()})


def compute_delta(name: str, outer: np.ndarray, params: np.ndarray) -> np.ndarray:
    """Return the delta of a shard, float32.

    Raises:
        NonFiniteDeltaError: the delta is not finite.
    """
    delta = np.empty_like(outer)  # the result of an array without dims would be no array
    np.subtract(outer, params.astype(np.float32, copy=False), out=delta)
    if not np.isfinite(delta).all():
        raise NonFiniteDeltaError(f"{name} must be finite at the end of a round")
    return delta


def mean_delta(deltas: Iterable[np.ndarray]) -> np.ndarray:
    """Return the mean of the members' deltas of a shard, summed in the given order, which must be that of the slices.

    Raises:
        ValueError: there are no deltas.
    """
    total: np.ndarray | None = None
    count = 0
    for count, delta in enumerate(deltas, start=1):  # noqa: B007  # the count after the last delta
        total = np.array(delta, np.float32) if total is None else np.add(total, delta, out=total)
    if total is None:
        raise ValueError("a round must have at least one member")
    mean: np.ndarray = np.divide(total, np.float32(count), out=total)
    return mean


def update_outer(state: OuterState, means: Mapping[str, np.ndarray], rates: OuterRates) -> None:
    """Apply the mean deltas of all shards, in place.

    As `optax.sgd(learning_rate, momentum, nesterov=True)` does with the mean delta as gradient.
    """
    rate, decay = np.float32(rates.learning_rate), np.float32(rates.momentum)
    for name, mean in means.items():
        trace, params = state.momentum[name], state.params[name]
        np.multiply(trace, decay, out=trace)
        np.add(trace, mean, out=trace)
        direction = np.empty_like(trace)
        np.multiply(trace, decay, out=direction)
        np.add(direction, mean, out=direction)
        np.multiply(direction, rate, out=direction)
        np.subtract(params, direction, out=params)
