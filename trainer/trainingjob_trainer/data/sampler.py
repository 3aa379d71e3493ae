"""The sampler: which sequence each sample index selects, as a pure function in constant time at any step.

Sample indices are numbered from 0 over the whole life of the job. Each step takes the next G indices that are not
excluded, where G is the global batch size. It may change at given steps. A job that takes over another may have other
batch sizes; it continues with the next index. An epoch is a permutation of all sequences, keyed by the seed and the
epoch's number, unless `data.shuffle` is false. No position needs to be saved, and the number of hosts does not change
the order. The indices that a rollback excludes, and the batch sizes, are part of the provenance that a checkpoint
carries.
"""

import hashlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from trainingjob_api.spec.training import BatchSizes

type ExcludedSamples = tuple[tuple[int, int], ...]
"""Excluded sample indices: half-open ranges, ascending and not adjacent."""


class SampleShare(NamedTuple):
    """The share that a replica has of each step's samples: part `part` of `parts`, counted from 0."""

    part: int
    parts: int

    def take(self, samples: np.ndarray) -> np.ndarray:
        """Return the part of the samples of a step. The parts of a batch that does not divide differ by one sample."""
        bounds = [len(samples) * part // self.parts for part in (self.part, self.part + 1)]
        return samples[slice(*bounds)]


WHOLE_BATCH = SampleShare(0, 1)
NUM_ROUNDS = 6
"""Rounds of the Feistel network: four with good round functions make a pseudorandom permutation, two more are margin.
"""


def count_samples(steps: int, sizes: BatchSizes) -> int:
    """Return how many samples the first `steps` steps of a history take."""
    ends = [first - 1 for first, _ in sizes[1:]] + [steps]
    return sum(max(min(end, steps) - first + 1, 0) * size for (first, size), end in zip(sizes, ends, strict=True))


def count_steps(num_samples: int, sizes: BatchSizes) -> int:
    """Return how many steps of a history take a number of samples. The last of them may take fewer than a batch."""
    left = num_samples
    for (first, size), (following, _) in pairwise(sizes):
        if left <= (following - first) * size:
            return first - 1 + -(-left // size)
        left -= (following - first) * size
    first, size = sizes[-1]
    return first - 1 + -(-left // size)


def size_of_step(step: int, sizes: BatchSizes) -> int:
    """Return the global batch size of a step."""
    return [size for first, size in sizes if first <= step][-1]


def continue_batch_sizes(sizes: BatchSizes, step: int, planned: BatchSizes) -> BatchSizes:
    """Return the batch sizes of a history that continues after a step with the batch sizes of a spec.

    If `sizes` is empty, the previous steps count as having the sizes of the spec.
    """
    past = tuple(entry for entry in sizes or planned if entry[0] <= step)
    coming = ((step + 1, size_of_step(step + 1, planned)), *(entry for entry in planned if entry[0] > step + 1))
    history: list[tuple[int, int]] = []
    for first, size in (*past, *coming):
        if not history or history[-1][1] != size:
            history.append((first, size))
    return tuple(history)


def samples_of_step(step: int, sizes: BatchSizes, skipped: ExcludedSamples = ()) -> np.ndarray:
    """Return the sample indices of a step [G], counted from 1, int64."""
    start = count_samples(step - 1, sizes)
    left = count_samples(step, sizes) - start
    runs = []
    for first, end in skipped:
        count = min(max(first - start, 0), left)
        runs.append(np.arange(start, start + count, dtype=np.int64))
        start += count + end - first
        left -= count
    return np.concatenate([*runs, np.arange(start, start + left, dtype=np.int64)])


def exclude_samples(skipped: ExcludedSamples, parent: int, step: int, sizes: BatchSizes) -> ExcludedSamples:
    """Return the excluded indices after the steps from `parent` + 1 to `step` are excluded too."""
    first = int(samples_of_step(parent + 1, sizes, skipped)[0])
    end = int(samples_of_step(step, sizes, skipped)[-1]) + 1
    apart = [gap for gap in skipped if gap[1] < first or gap[0] > end]
    touching = [gap for gap in skipped if gap not in apart]
    whole = min([first, *(gap[0] for gap in touching)]), max([end, *(gap[1] for gap in touching)])
    return tuple(sorted([*apart, whole]))


def sequences_of_samples(slots: np.ndarray, num_rows: int, seed: int, source: str = "") -> np.ndarray:
    """Return the sequence number of each sample index, int64, of the same shape.

    With the name of a source, `slots` number the samples of that source of a mixture.
    """
    epochs, positions = np.divmod(slots.astype(np.int64), num_rows)
    rows = np.empty_like(positions)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        rows[inside] = permute(positions[inside], num_rows, seed, int(epoch), source)
    return rows


def permute(places: np.ndarray, num_rows: int, seed: int, epoch: int, source: str = "") -> np.ndarray:
    """Return the image of each position in [0, num_rows) under the permutation of an epoch."""
    half_bits = max((num_rows - 1).bit_length() + 1, 2) // 2
    keys = _derive_keys(seed, epoch, source)
    result = _feistel(places.astype(np.uint64), half_bits, keys)
    # Cycle walking: the network permutes a power of four that is less than four times too large.
    while (outside := result >= np.uint64(num_rows)).any():
        result[outside] = _feistel(result[outside], half_bits, keys)
    return result.astype(np.int64)


def _derive_keys(seed: int, epoch: int, source: str) -> np.ndarray:
    of_source = f", source {source}" if source else ""
    digest = hashlib.sha256(f"trainingjob row order, seed {seed}, epoch {epoch}{of_source}".encode())
    material = b"".join(hashlib.sha256(digest.digest() + bytes([number])).digest()[:8] for number in range(NUM_ROUNDS))
    return np.frombuffer(material, np.uint64)


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit values (the finalizer of SplitMix64; arithmetic wraps on purpose)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
