"""Packing: every prediction of every document once, in rows that are full or filled up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainingjob_api.spec.data import PackingType
from trainingjob_trainer.data.packing.pack import assign_bins, pack_documents
from trainingjob_trainer.data.packing.pieces import Pieces, place_tokens

PACKED: dict[str, tuple[PackingType, list[int], int, list[list[tuple[int, int]]]]] = {
    "documents that end with a sequence": ("concat", [3, 6], 2, [[(0, 2)], [(3, 2)]]),
    "a document over two sequences": ("concat", [5, 8], 3, [[(0, 3)], [(3, 1), (5, 2)]]),
    "a last sequence that is not full": ("concat", [3, 7], 4, [[(0, 2), (3, 2)]]),
    "a document of one token predicts nothing": ("concat", [1, 4], 2, [[(1, 2)]]),
    "nothing to predict": ("concat", [1, 2], 4, []),
    "no documents": ("bestFit", [], 4, []),
    "the tightest sequence takes a document": (
        "bestFit",
        [7, 11, 14, 16],
        8,
        [[(0, 6), (11, 2)], [(7, 3), (14, 1)]],
    ),
    "a long document is cut": ("bestFit", [10, 13], 4, [[(0, 4)], [(4, 4)], [(8, 1), (10, 2)]]),
}


@pytest.mark.parametrize(("packing", "ends", "length", "want"), PACKED.values(), ids=PACKED)
def test_documents_are_packed(
    packing: PackingType, ends: list[int], length: int, want: list[list[tuple[int, int]]]
) -> None:
    pieces = pack_documents(np.array(ends, np.int64), length, packing)

    rows = [
        [(int(start), int(count)) for start, count in pieces.bounds[first:end]]
        for first, end in zip(pieces.firsts[:-1], pieces.firsts[1:], strict=True)
    ]
    assert rows == want


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=40),
    st.integers(1, 24),
    st.sampled_from(["concat", "bestFit"]),
)
def test_every_prediction_is_made_once(sizes: list[int], length: int, packing: PackingType) -> None:
    ends = np.cumsum(sizes).astype(np.int64)
    pieces = pack_documents(ends, length, packing)
    numbers = np.arange(pieces.num_sequences)

    placed = place_tokens(pieces, numbers, length)

    wanted = [
        token
        for end, size in zip(ends.tolist(), sizes, strict=True)
        for token in range(end - size, max(end - 1, 0))
        if size > 1
    ]
    if packing == "concat":
        wanted = wanted[: len(wanted) // length * length]
        assert placed.tokens.tolist() == wanted
        assert placed.places.tolist() == list(range(len(wanted)))
    assert sorted(placed.tokens.tolist()) == wanted
    assert len(set(placed.places.tolist())) == len(wanted)
    assert (placed.positions == 0).sum() == len(pieces.bounds)
    document = np.searchsorted(ends, placed.tokens, side="right")
    assert (document == np.searchsorted(ends, placed.tokens + 1, side="right")).all(), "a target of another document"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=80))
def test_best_fit_overfills_no_bin_and_wastes_little(sizes: list[int]) -> None:
    bins = assign_bins(np.array(sizes, np.int64), 30)

    filled = np.bincount(bins, sizes) if sizes else np.zeros(0)
    assert (filled > 0).all()
    assert (filled <= 30).all()
    # Any two bins together hold more than one bin: otherwise the later one would not have been opened.
    emptiest = np.sort(filled)[:2]
    assert len(emptiest) < 2 or emptiest.sum() > 30


def test_an_item_larger_than_a_bin_is_rejected() -> None:
    with pytest.raises(ValueError, match="larger than a bin of 4"):
        assign_bins(np.array([5]), 4)


DAMAGED: dict[str, tuple[list[list[int]], list[int]]] = {
    "more predictions than positions": ([[0, 3], [3, 3]], [0, 2]),
    "a negative number of predictions": ([[0, 3], [3, -1]], [0, 2]),
    "a token before the first": ([[-5, 3], [3, 1]], [0, 2]),
    "sequences out of order": ([[0, 3], [3, 1]], [2, 0]),
}


@pytest.mark.parametrize(("bounds", "firsts"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_pieces_are_rejected(bounds: list[list[int]], firsts: list[int]) -> None:
    with pytest.raises(ValueError, match=r"do not fit|negative"):
        place_tokens(Pieces(np.array(bounds), np.array(firsts)), np.array([0]), 4)
