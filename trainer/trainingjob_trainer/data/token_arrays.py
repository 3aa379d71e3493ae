"""Documents that are ids already: they are checked against the vocabulary, and not tokenized."""

from collections.abc import Iterable, Iterator

import numpy as np

from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.tokenizers import EncodedDocument, choose_dtype
from trainingjob_trainer.runtime.errors import TrainingError

ID_DTYPE = np.dtype("<u4")
"""The numbers of a document of ids."""


class TokenArrayEncoder:
    """Checks documents of ids. No id is added: documents hold those that begin and end them."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._dtype = choose_dtype(vocab_size)

    def encode_documents(self, documents: Iterable[bytes], name: str) -> Iterator[EncodedDocument]:
        """Yield the ids of each document of a file. Messages contain `name`.

        Raises:
            TrainingError: an id is not in the vocabulary.
        """
        first = 0
        for document in documents:
            ids = np.frombuffer(document, ID_DTYPE)
            if (is_unknown := ids >= self._vocab_size).any():
                place = int(np.argmax(is_unknown))
                raise TrainingError(
                    FailureReason.DATA,
                    f"must be at least {ids[place] + 1}: {name} has the id {ids[place]} at index {first + place}. "
                    "If the tokens are those of another tokenizer, prepare them again.",
                    path="spec.model.vocabSize",
                    value=self._vocab_size,
                )
            yield EncodedDocument(ids.astype(self._dtype))
            first += len(ids)


class RandomTokenEncoder:
    """Maps random numbers to ids that are equally frequent."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = np.uint64(vocab_size)
        self._dtype = choose_dtype(vocab_size)

    def encode_documents(self, documents: Iterable[bytes], _name: str) -> Iterator[EncodedDocument]:
        """Yield the ids of each document."""
        for document in documents:
            numbers = np.frombuffer(document, ID_DTYPE).astype(np.uint64)
            yield EncodedDocument((numbers * self._vocab_size >> np.uint64(32)).astype(self._dtype))
