"""Tokenization statistics: text that the tokenizer drops or misreads, counted while documents are encoded."""

import json

import numpy as np
import tokenizers

SAMPLE_CHARACTERS = 1_000_000
"""Characters of the text that are checked for missing token coverage."""
MAX_UNKNOWN_SHARE = 0.01
MAX_DROPPED_SHARE = 0.01
END_TOKENS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eos|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|endofdocument|>",
    "[EOS]",
    "<end>",
    "[SEP]",
)
"""Common spellings of the token that ends a document, the most likely first."""


class TokenizationStats:
    """Statistics over encoded documents. `tokenizer` is None if bytes are ids, so that nothing is lost."""

    def __init__(self, tokenizer: tokenizers.Tokenizer | None, end: int | None) -> None:
        self._tokenizer = tokenizer
        self._is_closed = end is not None
        self._documents = self._tokens = self._unknown = self._special = 0
        self._checked_characters = self._dropped_characters = 0
        self._unk = _find_unknown(tokenizer) if tokenizer else None
        added = tokenizer.get_added_tokens_decoder() if tokenizer else {}
        special = [number for number, token in added.items() if token.special and number != self._unk]
        self._special_ids = np.array(special, np.int64)

    def add(self, text: str, encoding: tokenizers.Encoding, *, is_templated: bool = False) -> None:
        """Count one document. A template writes special tokens itself, and separates documents by them."""
        ids = np.array(encoding.ids, np.int64)
        self._tokens += len(ids)
        self._unknown += 0 if self._unk is None else int((ids == self._unk).sum())
        if not is_templated:
            self._documents += 1
            self._special += int(np.isin(ids, self._special_ids).sum())
        if self._checked_characters < SAMPLE_CHARACTERS:
            self._count_dropped(text, encoding)

    def list_warnings(self) -> list[str]:
        """Return warnings about the encoded documents."""
        warnings = []
        if self._tokenizer and not self._is_closed and self._documents > 1:
            vocab = self._tokenizer.get_vocab(with_added_tokens=True)
            known = [token for token in END_TOKENS if token in vocab][:3]
            names = f": the tokenizer has {', '.join(known)}" if known else ""
            warnings.append(
                f"{self._documents:,} documents follow each other without a separator. Set "
                f"spec.tokenizer.endOfDocument{names}."
            )
        if self._unknown > MAX_UNKNOWN_SHARE * self._tokens:
            share = self._unknown / self._tokens
            warnings.append(
                f"{share:.1%} of the tokens are unknown to the tokenizer ({self._unknown:,} of {self._tokens:,}). "
                "Check that spec.tokenizer.path is made for this text."
            )
        if self._dropped_characters > MAX_DROPPED_SHARE * self._checked_characters:
            share = self._dropped_characters / self._checked_characters
            warnings.append(
                f"the tokenizer drops about {share:.0%} of the characters that are not blank, by the first "
                f"{self._checked_characters:,} of them. Check that spec.tokenizer.path is made for this text."
            )
        if self._special:
            warnings.append(
                f"the text spells special tokens of the tokenizer {self._special:,} times; each becomes the token "
                "itself, such as an end of a document."
            )
        return warnings

    def _count_dropped(self, text: str, encoding: tokenizers.Encoding) -> None:
        """Count the non-blank characters at the beginning of a text that no token covers."""
        text = text[: SAMPLE_CHARACTERS - self._checked_characters]
        edges = np.zeros(len(text) + 1, np.int64)
        if encoding.offsets:
            spans = np.minimum(np.array(encoding.offsets, np.int64), len(text))
            np.add.at(edges, spans[:, 0], 1)
            np.add.at(edges, spans[:, 1], -1)
        is_blank = np.fromiter((not one.isprintable() or one.isspace() for one in text), bool, len(text))
        is_lost = (np.cumsum(edges[:-1]) == 0) & ~is_blank
        self._checked_characters += int((~is_blank).sum())
        self._dropped_characters += int(is_lost.sum())


def _find_unknown(tokenizer: tokenizers.Tokenizer) -> int | None:  # None: it has no unknown token
    model = json.loads(tokenizer.to_str())["model"]
    number, token = model.get("unk_id"), model.get("unk_token")
    return number if isinstance(number, int) else tokenizer.token_to_id(token) if token else None
