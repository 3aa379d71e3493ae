"""Sequences of isolated documents: each sequence is a list of pieces, and a piece is a part of one document.

A document of n tokens has n - 1 predictions: each token but the first is predicted from those before it. A piece is a
run of predictions, and a sequence of length L holds L predictions. So no prediction is lost or made twice, and
none crosses from one document into the next.

Shapes: P pieces, R sequences, L length, N tokens of the selected pieces.
"""

from typing import NamedTuple

import numpy as np


class Pieces(NamedTuple):
    """The pieces of all sequences, in the order of the sequences."""

    bounds: np.ndarray
    """First token and number of predictions of each piece, int64 [P, 2]."""
    firsts: np.ndarray
    """The first piece of each sequence, and the number of all pieces, int64 [R + 1]."""

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences."""
        return len(self.firsts) - 1


def place_alone(ends: np.ndarray) -> Pieces:
    """Return sequences of one document each. `ends` are those of the documents, int64 [R], ascending.

    Each document has two tokens or more, and no more predictions than a sequence has.
    """
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    return Pieces(np.stack([starts, ends - starts - 1], axis=1), np.arange(len(ends) + 1, dtype=np.int64))


def place_without_bounds(num_sequences: int, length: int) -> Pieces:
    """Return sequences that follow each other in the tokens, whatever the documents: one piece each."""
    starts = np.arange(num_sequences, dtype=np.int64) * length
    return Pieces(np.stack([starts, np.full_like(starts, length)], axis=1), np.arange(num_sequences + 1))


class PlacedTokens(NamedTuple):
    """The positions of some sequences that hold predictions, as indices into flat arrays, int64 [N]."""

    places: np.ndarray
    """Position in the sequences, which follow each other: sequence times L, plus the position in it."""
    tokens: np.ndarray
    """The input token in the dataset. The token after it is the target."""
    segments: np.ndarray
    """Number of the piece in its sequence, from 1."""
    positions: np.ndarray
    """Position in the piece, from 0."""


def place_tokens(pieces: Pieces, numbers: np.ndarray, length: int) -> PlacedTokens:
    """Return where the tokens of some sequences lie.

    Raises:
        ValueError: the pieces are not those of sequences of this length.
    """
    begins, ends = pieces.firsts[numbers], pieces.firsts[numbers + 1]
    per_row = ends - begins
    chosen = np.repeat(begins, per_row) + _count_up(per_row)
    starts, counts = pieces.bounds[chosen].T
    rows = np.repeat(np.arange(len(numbers)), per_row)
    before = np.concatenate([[0], np.cumsum(counts)[:-1]])[: len(counts)]
    totals = np.bincount(rows, counts, len(numbers)).astype(np.int64)
    if (starts < 0).any() or (counts < 1).any() or (totals > length).any():
        raise ValueError("the pieces do not fit into their sequences")
    columns = before - np.repeat(np.cumsum(totals) - totals, per_row)
    inside = _count_up(counts)
    return PlacedTokens(
        places=np.repeat(rows * length + columns, counts) + inside,
        tokens=np.repeat(starts, counts) + inside,
        segments=np.repeat(_count_up(per_row) + 1, counts),
        positions=inside,
    )


def _count_up(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2, ... up to each count, one after another."""
    ends = np.cumsum(counts)
    numbers: np.ndarray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return numbers
