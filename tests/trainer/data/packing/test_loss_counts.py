"""The number of sequences without a loss is that of their loss weights, whatever the chunks of the weights."""

import numpy as np
import pytest

from trainingjob_trainer.data.packing.loss_counts import count_without_loss
from trainingjob_trainer.data.packing.pack import pack_documents
from trainingjob_trainer.data.packing.pieces import Pieces, place_tokens, place_without_bounds

LENGTH = 5
rng = np.random.default_rng(4)
SIZES = rng.integers(1, 12, 40)
ENDS = np.cumsum(SIZES)
WEIGHTS = (rng.random(ENDS[-1]) < 0.15).astype(np.uint8)
PIECES = {
    "plain": place_without_bounds((int(ENDS[-1]) - 1) // LENGTH, LENGTH),
    "concat": pack_documents(ENDS, LENGTH, "concat"),
    "bestFit": pack_documents(ENDS, LENGTH, "bestFit"),
}


def count_by_rows(pieces: Pieces) -> int:
    """Return the number of sequences without a loss, from the weights that the loader reads."""
    found = np.zeros((pieces.num_sequences, LENGTH))
    placed = place_tokens(pieces, np.arange(pieces.num_sequences), LENGTH)
    found.reshape(-1)[placed.places] = WEIGHTS[placed.tokens + 1]
    return int((found.sum(axis=1) == 0).sum())


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES.keys())
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_sequences_without_a_loss_are_counted(pieces: Pieces, chunk: int) -> None:
    expected = count_by_rows(pieces)
    assert 0 < expected < pieces.num_sequences

    assert count_without_loss(pieces, (WEIGHTS[at : at + chunk] for at in range(0, len(WEIGHTS), chunk))) == expected
