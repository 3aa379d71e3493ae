"""From text to token ids: bytes as they are, or a tokenizer of the `tokenizers` library."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from trainingjob_api.data import Tokenizer
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.failures import TrainingError

NUM_BYTES = 256
END_OF_BYTES = 256


class Encoder:
    """Turns documents into ids below `vocab_size`, each document closed by the end-of-document id, if there is one.

    Raises:
        TrainingError: the tokenizer cannot be read, lacks the token, or has ids that the model has no row for.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.dtype: type[np.unsignedinteger[Any]] = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._tokenizer: tokenizers.Tokenizer | None = None
        self._end: int | None = END_OF_BYTES
        needed = NUM_BYTES + 1
        self.identity: dict[str, object] = {"type": tokenizer.type, "endOfDocument": tokenizer.end_of_document}
        if tokenizer.type == "tokenizers":
            content = _read(tokenizer)
            self.identity["sha256"] = hashlib.sha256(content).hexdigest()
            self._tokenizer = _parse(content, tokenizer)
            needed = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
            self._end = _find_end(self._tokenizer, tokenizer)
        if needed > vocab_size:
            raise TrainingError(
                FailureReason.DATA,
                f"must be at least {needed}: the tokenizer's ids go up to {needed - 1}. "
                f"Nearest legal value: {needed}; multiples of 128 run fastest: {-(-needed // 128) * 128}.",
                path="spec.model.vocabSize",
                value=vocab_size,
            )

    def encode(self, content: bytes) -> np.ndarray:
        """Return the ids of one document of UTF-8 text."""
        if self._tokenizer is None:
            ids = np.frombuffer(content, np.uint8).astype(self.dtype)
        else:
            ids = np.array(self._tokenizer.encode(content.decode(), add_special_tokens=False).ids, self.dtype)
        return ids if self._end is None else np.append(ids, self.dtype(self._end))


def _read(tokenizer: Tokenizer) -> bytes:
    try:
        return Path(tokenizer.path or "").read_bytes()
    except OSError as error:
        raise TrainingError(
            FailureReason.DATA,
            f"the tokenizer cannot be read: {error.strerror}. It must be a tokenizer.json file that every host sees.",
            path="spec.tokenizer.path",
            value=tokenizer.path,
        ) from error


def _parse(content: bytes, tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises plain Exception
        raise TrainingError(
            FailureReason.DATA,
            f"is not a tokenizer.json of the `tokenizers` library: {error}.",
            path="spec.tokenizer.path",
            value=tokenizer.path,
        ) from error


def _find_end(parsed: tokenizers.Tokenizer, tokenizer: Tokenizer) -> int | None:  # None: documents are not closed
    if tokenizer.end_of_document is None:
        return None
    end = parsed.token_to_id(tokenizer.end_of_document)
    if end is None:
        special = [token.content for token in parsed.get_added_tokens_decoder().values()]
        raise TrainingError(
            FailureReason.DATA,
            "is not a token of the tokenizer." + (f" Its special tokens: {', '.join(special[:8])}." if special else ""),
            path="spec.tokenizer.endOfDocument",
            value=tokenizer.end_of_document,
        )
    return end
