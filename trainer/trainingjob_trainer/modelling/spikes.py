"""Spikes: a loss, or a norm of the gradients, far above those of the steps before.

They are looked for inside the step, so that the update of such a batch is never made. What a step is compared with
are the newest steps whose update was made: a spike does not make the next one look small. These numbers are part of the
state, so every process, every size of world and every restart finds the same.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Window(NamedTuple):
    """The newest steps whose update was made. W steps, of each M measures."""

    seen: jax.Array
    """float32 [M, W]; the n-th step lies in place n modulo W."""
    num_steps: jax.Array
    """How many there were, int32."""
    in_a_row: jax.Array
    """Spikes in a row, up to now, int32."""


NUM_MEASURES = 2
"""The loss, and the norm of the gradients."""
FEWEST = 4
"""Steps without which nobody knows how far a measure varies; in a shorter window, all of it."""
LEAST_DEVIATION = 0.001
"""Of the mean: what a standard deviation counts as at least, for a few steps may be alike by chance."""


def begin(size: int) -> Window:
    """Return a window of so many steps that has seen none."""
    zero = jnp.zeros((), jnp.int32)
    return Window(jnp.zeros((NUM_MEASURES, size), jnp.float32), zero, zero)


def begin_like(described: Window) -> Window:
    """Return a window that has seen no step, with described shapes and shardings; outside of programs."""

    def make(leaf: jax.Array) -> jax.Array:
        zeros = np.zeros(leaf.shape, leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda place: zeros[place])

    return Window(*map(make, described))


def is_spike(window: Window, measured_M: jax.Array, sigma: float) -> jax.Array:
    """Return whether a measure is so many standard deviations above its mean.

    Never before half the window is full, and never after fewer than `FEWEST` steps where the window has as many.
    """
    size = window.seen.shape[1]
    is_known_1W = (jnp.arange(size) < window.num_steps)[None, :]
    known = jnp.minimum(window.num_steps, size)
    divisor = jnp.maximum(known, 1).astype(jnp.float32)
    mean_M1 = jnp.sum(jnp.where(is_known_1W, window.seen, 0.0), axis=1, keepdims=True) / divisor
    square_MW = jnp.where(is_known_1W, jnp.square(window.seen - mean_M1), 0.0)
    least_M = LEAST_DEVIATION * jnp.abs(mean_M1[:, 0])
    deviation_M = jnp.maximum(jnp.sqrt(jnp.sum(square_MW, axis=1) / divisor), least_M)
    is_known = (2 * known >= size) & (known >= min(size, FEWEST))
    return is_known & jnp.any(measured_M > mean_M1[:, 0] + sigma * deviation_M)


def follow(window: Window, measured_M: jax.Array, spike: jax.Array, taken: jax.Array) -> Window:
    """Return the window after a step, whose update was made if `taken`."""
    size = window.seen.shape[1]
    is_place_1W = (jnp.arange(size) == window.num_steps % size)[None, :]
    return Window(
        seen=jnp.where(taken & is_place_1W, measured_M[:, None], window.seen),
        num_steps=window.num_steps + taken.astype(jnp.int32),
        in_a_row=jnp.where(spike, window.in_a_row + 1, 0),
    )
