"""A teacher for the tiny student of the tests."""

from typing import Any

import numpy as np

from trainingjob_trainer.data.stored_probabilities import Description, StoredReader, StoredRows
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.store.opening import open_store

TEACHER: dict[str, Any] = {
    "model": {
        "vocabSize": 272,
        "embedDim": 32,
        "mlpDim": 48,
        "numLayers": 4,
        "numHeads": 4,
        "headDim": 8,
        "init": {"std": 0.5},
        "tieEmbeddings": True,
    },
    "initializeFrom": {"uri": "/unused/teacher", "step": 1},
}
"""Wider and deeper than the student, with other heads and a tied table."""


def distillation(**options: Any) -> dict[str, Any]:
    """Return the objective of a distillation."""
    return {"type": "distill", "distill": {"teacher": TEACHER, **options}}


PER_TOKEN = 3


def stored_distillation(**options: Any) -> dict[str, Any]:
    """Return the objective of a distillation from stored probabilities."""
    return {
        "type": "distill",
        "distill": {"probabilities": {"uri": "/unused/taught", "perToken": PER_TOKEN}, **options},
    }


class MadeUpShares(StoredReader):
    """Stored probabilities without a store: the first id of each prediction is its target, all else is random."""

    def __init__(self, dataset: TokenDataset, vocab_size: int, per_token: int = PER_TOKEN) -> None:
        L, number = dataset.sequence_length, dataset.num_sequences
        described = Description("abc", 5, per_token, vocab_size, L, number)
        super().__init__(open_store("/unused"), "unused", described)
        rng = np.random.default_rng(9)
        targets = dataset.sequences(np.arange(number)).targets[..., None]
        others = targets + 1 + np.argsort(rng.random((number, L, vocab_size - 1)))[..., : per_token - 1]
        self.rows = StoredRows(
            np.concatenate([targets, others % vocab_size], axis=-1).astype(np.int32),
            rng.dirichlet(np.ones(per_token), (number, L)).astype(np.float16),
            rng.random((number, L)).astype(np.float32),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def read(self, numbers: np.ndarray) -> StoredRows:
        """Return the rows of sequences."""
        return StoredRows(*(array[numbers] for array in self.rows))
