"""Fill-in-the-middle: documents whose middle is moved to their end (Bavarian et al., arXiv 2207.14255).

A document of text is split at two characters into prefix, middle and suffix, which are encoded apart. PSM is <prefix>
prefix <suffix> suffix <middle> middle. SPM is <prefix> <suffix> suffix <middle> prefix middle, the second variant of
the paper: both are then in one format. The tokens that begin and end documents stay around them.

Whether a document is split, where, and in which order are a function of the seed and the document alone. So hosts,
processes and restarts agree, and each epoch has the same documents.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from trainingjob_api.spec.data import FillInTheMiddle
from trainingjob_trainer.data.tokenizers import DocumentEncoder, EncodedDocument, batch_documents

FIELD = "spec.data.fillInTheMiddle"
DRAW_BYTES = 8
DRAW_RANGE = 1 << (8 * DRAW_BYTES)


class SplitDocument(NamedTuple):
    """The parts of a document in its text. Prefix, middle and suffix joined are the document."""

    prefix: str
    middle: str
    suffix: str
    is_suffix_first: bool
    """Whether the order is SPM."""


class MiddleEncoder:
    """Encodes a share of the documents with their middle at the end, and the others as they are.

    Raises:
        TrainingError: the tokenizer lacks one of the three tokens.
    """

    def __init__(self, encoder: DocumentEncoder, settings: FillInTheMiddle, seed: int) -> None:
        self._encoder = encoder
        self._settings = settings
        self._seed = seed
        self._prefix, self._suffix, self._middle = (
            np.array([encoder.find_id(token, f"{FIELD}.{kind}Token")], encoder.dtype)
            for kind, token in (
                ("prefix", settings.prefix_token),
                ("suffix", settings.suffix_token),
                ("middle", settings.middle_token),
            )
        )
        self.key: dict[str, object] = {**settings.model_dump(by_alias=True), "seed": seed}
        """What decides the ids, beside the tokenizer."""

    def encode_documents(self, documents: Iterable[bytes], name: str) -> Iterator[EncodedDocument]:
        """Yield each document of UTF-8 text, in order. Messages contain `name`.

        Raises:
            TrainingError: the tokenizer cannot encode a document.
        """
        for batch in batch_documents(documents, len):
            splits = [split_document(document, self._settings, self._seed) for document in batch]
            whole = iter(
                self._encoder.encode_documents(
                    (document for document, split in zip(batch, splits, strict=True) if split is None), name
                )
            )
            texts = [(split.prefix, split.middle, split.suffix) for split in splits if split]
            parts = self._encoder.encode_parts(texts, name)
            for split in splits:
                yield next(whole) if split is None else self._arrange(split, *islice(parts, 3))

    def _arrange(
        self, split: SplitDocument, prefix: np.ndarray, middle: np.ndarray, suffix: np.ndarray
    ) -> EncodedDocument:
        if split.is_suffix_first:
            ordered = (self._prefix, self._suffix, suffix, self._middle, prefix, middle)
        else:
            ordered = (self._prefix, prefix, self._suffix, suffix, self._middle, middle)
        return EncodedDocument(self._encoder.bound(np.concatenate(ordered)))


def split_document(
    document: bytes, settings: FillInTheMiddle, seed: int
) -> SplitDocument | None:  # None: the document stays as it is
    """Return the parts of a document of UTF-8 text. Both cuts are uniform over its characters, its ends included."""
    digest = hashlib.sha256(f"trainingjob fill in the middle, seed {seed}\0".encode() + document).digest()
    chosen, order, *cuts = np.frombuffer(digest, f">u{DRAW_BYTES}").tolist()
    if chosen >= settings.share * DRAW_RANGE:
        return None
    text = document.decode()
    first, second = sorted(cut * (len(text) + 1) // DRAW_RANGE for cut in cuts)
    is_suffix_first = settings.order == "spm" or (settings.order == "joint" and order < DRAW_RANGE // 2)
    return SplitDocument(text[:first], text[first:second], text[second:], is_suffix_first)
