"""Sums and hashes of the bits of arrays, by which arrays are compared. No split of an array changes them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def hash_arrays(tree: Any) -> jax.Array:
    """Return a hash of all arrays of a tree and their order, uint32 above 0. It does not depend on their sharding.

    All processes of a world call this together.
    """

    def add_up(tree: Any) -> jax.Array:
        total = jnp.zeros((), jnp.uint32)
        for leaf in jax.tree.leaves(tree):
            total = _hash(total + sum_bits(leaf) + 1)
        return jnp.maximum(total, 1)

    sharding: Any = jax.tree.leaves(tree)[0].sharding
    replicated = NamedSharding(sharding.mesh, PartitionSpec())
    hashed: jax.Array = jax.jit(add_up, out_shardings=replicated)(tree)
    return hashed


def sum_bits(numbers: jax.Array) -> jax.Array:
    """Return the sum of the hashes of all numbers, uint32."""
    bits = jax.lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{8 * numbers.dtype.itemsize}"))
    return jnp.sum(_hash(bits.astype(jnp.uint32)), dtype=jnp.uint32)


def _hash(bits: jax.Array) -> jax.Array:
    """Return a one-to-one hash of each number: the last steps of MurmurHash3."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
