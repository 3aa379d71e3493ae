"""Which row of the text each slot of the sample order holds: a pure function, in constant time at any step.

Slots are numbered from 0 over the whole life of the job; step s (from 1) takes the slots (s - 1) x G to s x G. An epoch
is a permutation of all rows, keyed by the seed and the epoch's number. So no position needs to be saved, and no number
of hosts changes the order.
"""

import hashlib

import numpy as np

NUM_ROUNDS = 6
"""Of the Feistel network: four make a pseudorandom permutation of good round functions, two more are margin."""


def slots_of_step(step: int, global_batch_size: int) -> np.ndarray:
    """Return the slots of a step [G], int64."""
    first = (step - 1) * global_batch_size
    return np.arange(first, first + global_batch_size, dtype=np.int64)


def rows_of_slots(slots: np.ndarray, num_rows: int, seed: int) -> np.ndarray:
    """Return the row of each slot, int64, of the same shape."""
    epochs, places = np.divmod(slots.astype(np.int64), num_rows)
    rows = np.empty_like(places)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        rows[inside] = permute(places[inside], num_rows, seed, int(epoch))
    return rows


def permute(places: np.ndarray, num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return where a permutation of [0, num_rows) sends each place; places are in [0, num_rows)."""
    half_bits = max((num_rows - 1).bit_length() + 1, 2) // 2
    keys = _derive_keys(seed, epoch)
    result = _feistel(places.astype(np.uint64), half_bits, keys)
    # The network permutes a power of four, less than four times too large: walk its cycles until all are inside.
    while (outside := result >= np.uint64(num_rows)).any():
        result[outside] = _feistel(result[outside], half_bits, keys)
    return result.astype(np.int64)


def _derive_keys(seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.sha256(f"trainingjob row order, seed {seed}, epoch {epoch}".encode())
    material = b"".join(hashlib.sha256(digest.digest() + bytes([number])).digest()[:8] for number in range(NUM_ROUNDS))
    return np.frombuffer(material, np.uint64)


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit values (the finaliser of SplitMix64; arithmetic wraps on purpose)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
