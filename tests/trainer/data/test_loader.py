"""Batches of held-out text."""

import numpy as np
import pytest

from tests.support.trainer.training import ONE, Run, spec_with
from trainingjob_trainer.data.token_dataset import TokenDataset

NUM_SEQUENCES = 19
"""Two whole batches, and one of three sequences."""


@pytest.mark.parametrize(("wanted", "want"), [(1, 1), (3, 3), (100_000, 3), ("all", 3)])
def test_an_evaluation_has_at_most_the_batches_of_the_text(wanted: int | str, want: int) -> None:
    run = Run(spec_with(), ONE)
    length = run.spec.training.sequence_length
    dataset = TokenDataset("", np.zeros(NUM_SEQUENCES * length + 1, np.uint16), length)

    assert run.batches.count_held_out(dataset, wanted) == want


def test_the_batches_of_the_whole_text_have_each_prediction_once() -> None:
    run = Run(spec_with(), ONE)
    length = run.spec.training.sequence_length
    tokens = np.arange(NUM_SEQUENCES * length + 1, dtype=np.uint16)
    dataset = TokenDataset("", tokens, length)

    batches = [run.batches.held_out_batch(dataset, number) for number in range(3)]
    predicted = [np.asarray(batch.targets)[np.asarray(batch.loss_weights) > 0] for batch in batches]

    assert [len(one) // length for one in predicted] == [8, 8, 3]
    assert np.concatenate(predicted).tolist() == tokens[1:].tolist()
