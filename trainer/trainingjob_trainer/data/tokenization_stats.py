"""Tokenization statistics: text that the tokenizer drops or misreads, counted while documents are encoded."""

import json
from collections import Counter

import numpy as np

from trainingjob_trainer.data.sentence_piece import TextEncoding, TextTokenizer

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

    def __init__(self, tokenizer: TextTokenizer | None, end: int | None) -> None:
        self._tokenizer = tokenizer
        self._is_closed = end is not None
        self.counts: Counter[str] = Counter()
        """Documents, tokens, unknown and special tokens, and checked and dropped characters."""
        self._unk = find_unknown(tokenizer) if tokenizer else None
        added = tokenizer.get_added_tokens_decoder() if tokenizer else {}
        special = [number for number, token in added.items() if token.special and number != self._unk]
        self._special_ids = np.array(special, np.int64)

    def add(self, text: str, encoding: TextEncoding, *, is_templated: bool = False, is_continued: bool = False) -> None:
        """Count one document. A template writes special tokens itself, and separates documents by them.

        `is_continued`: the text is a part of the document that was counted before.
        """
        ids = np.array(encoding.ids, np.int64)
        self.counts["tokens"] += len(ids)
        self.counts["unknown"] += 0 if self._unk is None else int((ids == self._unk).sum())
        if not is_templated:
            self.counts["documents"] += not is_continued
            self.counts["special"] += int(np.isin(ids, self._special_ids).sum())
        if self.counts["checked"] < SAMPLE_CHARACTERS:
            self._count_dropped(text, encoding)

    def list_warnings(self, counts: Counter[str]) -> list[str]:
        """Return warnings about documents with these counts: those of this object, or of several added."""
        warnings = []
        if self._tokenizer and not self._is_closed and counts["documents"] > 1:
            vocab = self._tokenizer.get_vocab(with_added_tokens=True)
            known = [token for token in END_TOKENS if token in vocab][:3]
            names = f": the tokenizer has {', '.join(known)}" if known else ""
            warnings.append(
                f"{counts['documents']:,} documents follow each other without a separator. Set "
                f"spec.tokenizer.endOfDocument{names}."
            )
        if counts["unknown"] > MAX_UNKNOWN_SHARE * counts["tokens"]:
            share = counts["unknown"] / counts["tokens"]
            warnings.append(
                f"{share:.1%} of the tokens are unknown to the tokenizer ({counts['unknown']:,} of "
                f"{counts['tokens']:,}). Check that spec.tokenizer.path is made for this text."
            )
        if counts["dropped"] > MAX_DROPPED_SHARE * counts["checked"]:
            share = counts["dropped"] / counts["checked"]
            warnings.append(
                f"the tokenizer drops about {share:.0%} of the characters that are not blank, by the first "
                f"{counts['checked']:,} of them. Check that spec.tokenizer.path is made for this text."
            )
        if counts["special"]:
            warnings.append(
                f"the text spells special tokens of the tokenizer {counts['special']:,} times; each becomes the token "
                "itself, such as an end of a document."
            )
        return warnings

    def _count_dropped(self, text: str, encoding: TextEncoding) -> None:
        """Count the non-blank characters at the beginning of a text that no token covers."""
        text = text[: SAMPLE_CHARACTERS - self.counts["checked"]]
        edges = np.zeros(len(text) + 1, np.int64)
        if encoding.offsets:
            spans = np.minimum(np.array(encoding.offsets, np.int64), len(text))
            np.add.at(edges, spans[:, 0], 1)
            np.add.at(edges, spans[:, 1], -1)
        is_blank = np.fromiter(
            (not character.isprintable() or character.isspace() for character in text), bool, len(text)
        )
        is_lost = (np.cumsum(edges[:-1]) == 0) & ~is_blank
        self.counts["checked"] += int((~is_blank).sum())
        self.counts["dropped"] += int(is_lost.sum())


def find_unknown(tokenizer: TextTokenizer) -> int | None:  # None: it has no unknown token
    """Return the id of the token for text that the vocabulary does not cover."""
    model = json.loads(tokenizer.to_str())["model"]
    number, token = model.get("unk_id"), model.get("unk_token")
    return number if isinstance(number, int) else tokenizer.token_to_id(token) if token else None
