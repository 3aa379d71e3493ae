"""Sums over the bits of arrays, by which arrays are compared. No split of an array changes them."""

import jax
import jax.numpy as jnp


def sum_bits(numbers: jax.Array) -> jax.Array:
    """Return the sum of the hashes of all numbers, uint32."""
    bits = jax.lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{8 * numbers.dtype.itemsize}"))
    return jnp.sum(hash_bits(bits.astype(jnp.uint32)), dtype=jnp.uint32)


def hash_bits(bits: jax.Array) -> jax.Array:
    """Return a one-to-one hash of each number: the last steps of MurmurHash3."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
