"""Spike detection: a loss or a gradient norm far above those of the previous steps.

Detection runs inside the step, so that the update of such a batch is never applied. A step is compared with the newest
steps whose update was applied, so that a spike does not hide the next one. These statistics are part of the state:
every process, every world size and every restart decides alike.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SpikeWindow(NamedTuple):
    """Metrics of the newest steps with an applied update: W steps of M metrics."""

    seen: jax.Array
    """float32 [M, W]; the n-th step is at position n modulo W."""
    num_steps: jax.Array
    """Number of steps that were recorded, int32."""
    in_a_row: jax.Array
    """Consecutive spikes up to now, int32."""


NUM_METRICS = 2
"""Loss and gradient norm."""
MIN_STEPS = 4
"""Minimum steps from which the variation of a metric can be estimated; a shorter window must be full."""
MIN_DEVIATION = 0.001
"""Minimum standard deviation as a share of the mean, because a few steps may be equal by chance."""


def empty_window(size: int) -> SpikeWindow:
    """Return an empty window of `size` steps."""
    zero = jnp.zeros((), jnp.int32)
    return SpikeWindow(jnp.zeros((NUM_METRICS, size), jnp.float32), zero, zero)


def is_spike(window: SpikeWindow, measured_M: jax.Array, sigma: float) -> jax.Array:
    """Return whether any metric is more than `sigma` standard deviations above its mean.

    It is false until half the window is full, and before `MIN_STEPS` steps if the window has as many.
    """
    size = window.seen.shape[1]
    is_known_1W = (jnp.arange(size) < window.num_steps)[None, :]
    known = jnp.minimum(window.num_steps, size)
    divisor = jnp.maximum(known, 1).astype(jnp.float32)
    mean_M1 = jnp.sum(jnp.where(is_known_1W, window.seen, 0.0), axis=1, keepdims=True) / divisor
    square_MW = jnp.where(is_known_1W, jnp.square(window.seen - mean_M1), 0.0)
    least_M = MIN_DEVIATION * jnp.abs(mean_M1[:, 0])
    deviation_M = jnp.maximum(jnp.sqrt(jnp.sum(square_MW, axis=1) / divisor), least_M)
    is_known = (2 * known >= size) & (known >= min(size, MIN_STEPS))
    return is_known & jnp.any(measured_M > mean_M1[:, 0] + sigma * deviation_M)


def update_window(window: SpikeWindow, measured_M: jax.Array, spike: jax.Array, taken: jax.Array) -> SpikeWindow:
    """Return the window after a step, whose update was applied if `taken`."""
    size = window.seen.shape[1]
    is_place_1W = (jnp.arange(size) == window.num_steps % size)[None, :]
    return SpikeWindow(
        seen=jnp.where(taken & is_place_1W, measured_M[:, None], window.seen),
        num_steps=window.num_steps + taken.astype(jnp.int32),
        in_a_row=jnp.where(spike, window.in_a_row + 1, 0),
    )
