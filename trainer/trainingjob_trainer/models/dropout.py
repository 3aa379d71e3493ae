"""Dropout whose masks follow from the seed, the step and the position of a value alone.

Each sequence of a step has a seed, by its place in the global batch. A layer derives the seeds of the next one. So the
masks depend neither on the devices nor on the split into microbatches, and a step that runs again has the same ones.

Shapes: B sequences, L length.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import jax
import jax.numpy as jnp

LENGTH_FACTOR, FEATURE_FACTOR = 0x9E3779B1, 0x85EBCA77
"""Odd numbers that keep neighboring positions and features apart before their bits are mixed."""
_SEEDS: ContextVar[tuple[jax.Array | None, jax.Array | None]] = ContextVar("dropout_seeds", default=(None, None))


@contextmanager
def use_seeds(seeds_B: jax.Array | None, places_1L: jax.Array | None = None) -> Iterator[None]:
    """Trace the code inside with the seeds of its sequences, uint32 [B]. None: without dropout.

    `places_1L` are the places of the tokens in their sequence. None: they are in its order.
    """
    token = _SEEDS.set((seeds_B, places_1L))
    try:
        yield
    finally:
        _SEEDS.reset(token)


def sequence_seeds(seed: int, step: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the seed of each sequence of a step, uint32 of a shape whose numbers are in the order of the batch."""
    start = _mix(jnp.uint32(seed & 0xFFFFFFFF) ^ _mix(step.astype(jnp.uint32)))
    places = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return _mix(start ^ _mix(places + jnp.uint32(1)))


def seeds_of_next_layer(seeds_B: jax.Array | None) -> jax.Array | None:
    """Return the seeds of the layer after one with these."""
    return None if seeds_B is None else _mix(seeds_B + jnp.uint32(LENGTH_FACTOR))


def mix_name(seeds_B: jax.Array, name: str) -> jax.Array:
    """Return the seeds of a named part of the model."""
    return _mix(seeds_B ^ jnp.uint32(zlib.crc32(name.encode())))


def drop_features(x: jax.Array, rate: float, name: str) -> jax.Array:
    """Return values [B, L, ...] of which a share is 0 and the others are scaled up. `name` sets masks apart.

    Outside of `use_seeds` nothing is dropped. The backward pass computes the mask again.
    """
    seeds_B, places_1L = _SEEDS.get()
    if seeds_B is None or not rate:
        return x
    places_L = jnp.arange(x.shape[1]) if places_1L is None else places_1L.reshape(-1)
    # Without `prevent_cse` as for layers: the passes are in different loops.
    dropped: jax.Array = jax.checkpoint(partial(_drop, rate), prevent_cse=False)(x, mix_name(seeds_B, name), places_L)
    return dropped


def _drop(rate: float, x: jax.Array, seeds_B: jax.Array, places_L: jax.Array) -> jax.Array:
    """Return values [B, L, ...] after dropout, with a mask of seeds and places."""
    B, L, *features = x.shape
    place = seeds_B.reshape(B, *[1] * (x.ndim - 1))
    length = places_L.astype(jnp.uint32).reshape(1, L, *[1] * len(features))
    feature = jnp.arange(math.prod(features), dtype=jnp.uint32).reshape(1, 1, *features)
    bits = _mix(_mix(place + length * jnp.uint32(LENGTH_FACTOR)) + feature * jnp.uint32(FEATURE_FACTOR))
    is_kept = bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(is_kept, x / (1 - rate), jnp.zeros_like(x)).astype(x.dtype)


def _mix(x: jax.Array) -> jax.Array:
    """Return well-mixed bits of uint32 numbers: the hash `lowbias32` of C. Wellons."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
