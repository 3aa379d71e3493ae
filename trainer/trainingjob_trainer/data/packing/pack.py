"""Pack documents into sequences: one after another, or by best fit.

Shapes: D documents, P pieces, R sequences.
"""

from bisect import bisect_left, insort

import numpy as np

from trainingjob_api.spec.data import PackingType
from trainingjob_trainer.data.packing.pieces import Pieces


def pack_documents(ends: np.ndarray, length: int, packing: PackingType) -> Pieces:
    """Return the pieces of all sequences.

    Args:
        ends: the end of each document in the tokens of a dataset, int64 [D], ascending.
        length: predictions of a full sequence.
        packing: `concat` cuts documents where a sequence is full, and leaves out the last sequence if it is not.
            `bestFit` cuts only documents that are longer than a sequence, and fills up sequences with padding.
    """
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    predictions = ends - starts - 1
    has_any = predictions > 0
    starts, predictions = starts[has_any], predictions[has_any]
    if packing == "concat":
        return _concatenate(starts, predictions, length)
    bounds = _cut(starts, predictions, np.zeros_like(starts), length)
    bins = assign_bins(bounds[:, 1], length)
    order = np.argsort(bins, kind="stable")
    per_bin = np.bincount(bins)
    return Pieces(bounds[order], np.concatenate([[0], np.cumsum(per_bin)]).astype(np.int64))


def _concatenate(starts: np.ndarray, predictions: np.ndarray, length: int) -> Pieces:
    ends = np.cumsum(predictions)
    bounds = _cut(starts, predictions, (ends - predictions) % length, length)
    num_sequences = int(ends[-1]) // length if len(ends) else 0
    filled = np.cumsum(bounds[:, 1])
    firsts = np.searchsorted(filled, np.arange(num_sequences + 1) * length, side="right")
    return Pieces(bounds[: firsts[-1]], firsts.astype(np.int64))


def _cut(starts: np.ndarray, predictions: np.ndarray, offsets: np.ndarray, length: int) -> np.ndarray:
    """Return documents cut at multiples of a length, int64 [P, 2]; `offsets` [D] are counted before each document."""
    per_document = -(-(offsets + predictions) // length)
    number = np.arange(per_document.sum()) - np.repeat(np.cumsum(per_document) - per_document, per_document)
    offset, end = np.repeat(offsets, per_document), np.repeat(offsets + predictions, per_document)
    first = np.maximum(number * length, offset)
    last = np.minimum((number + 1) * length, end)
    return np.stack([np.repeat(starts, per_document) + first - offset, last - first], axis=1)


def assign_bins(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Return the bin of each item by best fit decreasing, int64 [P], numbered from 0.

    Items are placed from the largest to the smallest, each into the bin with the least space that suffices. That takes
    at most 11/9 of the fewest possible bins, and one more (Johnson et al., SIAM Journal on Computing 3, 1974).
    Items of equal size are placed together: one into each of the bins with equal space.

    Raises:
        ValueError: an item is larger than a bin.
    """
    if (sizes > capacity).any():
        raise ValueError(f"an item is larger than a bin of {capacity}")
    bins = np.empty(len(sizes), np.int64)
    order = np.argsort(-sizes, kind="stable")
    by_space: dict[int, list[np.ndarray]] = {}
    spaces: list[int] = []  # keys of `by_space`, ascending
    num_bins = 0

    def add(space: int, numbers: np.ndarray) -> None:
        if space and not by_space.setdefault(space, []):
            insort(spaces, space)
        if space:
            by_space[space].append(numbers)

    first_of_sizes = np.flatnonzero(np.diff(sizes[order], prepend=capacity + 1))
    for equal in np.split(order, first_of_sizes[1:]) if len(order) else ():
        items, size = equal, int(sizes[equal[0]])
        while len(items):
            place = bisect_left(spaces, size)
            if place < len(spaces):
                space = spaces.pop(place)
                open_bins = np.concatenate(by_space.pop(space))
            else:
                space = capacity
                open_bins = np.arange(num_bins, num_bins + -(-len(items) // (capacity // size)))
                num_bins += len(open_bins)
            taken = open_bins[: len(items)]
            bins[items[: len(taken)]] = taken
            items = items[len(taken) :]
            add(space - size, taken)
            if len(taken) < len(open_bins):
                add(space, open_bins[len(taken) :])
    return bins
