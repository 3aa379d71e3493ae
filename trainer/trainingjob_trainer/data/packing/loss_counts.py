"""Sequences that train nothing: the loss weights of all their predictions are 0.

Shapes: P pieces, E edges of pieces, R sequences.
"""

from collections.abc import Iterable

import numpy as np

from trainingjob_trainer.data.packing.pieces import Pieces


def count_without_loss(pieces: Pieces, weights: Iterable[np.ndarray]) -> int:
    """Return the number of sequences without a prediction in the loss.

    Args:
        pieces: the pieces of the sequences; each sequence has one or more.
        weights: the loss weight of each token of the dataset as a target, in order, in any chunks.
    """
    starts, counts = pieces.bounds.T
    firsts = starts + 1  # the first token of a piece is not predicted
    before_P, until_P = np.split(_count_before(np.concatenate([firsts, firsts + counts]), weights), 2)
    weighed_R = np.add.reduceat(until_P - before_P, pieces.firsts[:-1])
    return int((weighed_R == 0).sum())


def _count_before(edges_E: np.ndarray, weights: Iterable[np.ndarray]) -> np.ndarray:
    """Return how many tokens before each edge have a weight, int64 [E]. Only one chunk is in memory at a time."""
    order_E = np.argsort(edges_E, kind="stable")
    sorted_E = edges_E[order_E]
    found_E = np.zeros(len(edges_E), np.int64)
    done = begin = total = 0
    for chunk in weights:
        last = int(np.searchsorted(sorted_E, begin + len(chunk), side="right"))
        sums = np.concatenate([[0], np.cumsum(chunk != 0)])
        found_E[order_E[done:last]] = total + sums[sorted_E[done:last] - begin]
        done, begin, total = last, begin + len(chunk), total + int(sums[-1])
    return found_E
