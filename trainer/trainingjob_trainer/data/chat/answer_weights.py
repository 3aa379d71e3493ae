"""Loss weights of tokens: 1 for those of answers, by the characters that each token covers.

Shapes: N tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

type Span = tuple[int, int]
"""Begin and end of a part of a text, in characters."""


class MarkedText(NamedTuple):
    """The text of a document, and the parts of it that are answers."""

    text: str
    answers: Sequence[Span]
    is_bounded: bool
    """Whether tokens begin and end it, as any document. A chat template writes those of a conversation itself."""


def weigh_tokens(offsets: np.ndarray, answers: Sequence[Span]) -> np.ndarray:
    """Return the weight of each token, uint8 [N]: 1 if it covers a character of an answer.

    Args:
        offsets: begin and end of the characters of each token, int64 [N, 2].
        answers: parts of the text, in order.
    """
    begins, ends = offsets[:, 0], offsets[:, 1]
    # A tokenizer may trim the blanks of a token: a token of blanks alone covers what lies after the token before it.
    before = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]) if len(ends) else ends
    begins = np.where(begins == ends, np.minimum(before, begins), begins)
    begins = np.where(begins == ends, np.maximum(begins - 1, 0), begins)
    weights = np.zeros(len(offsets), np.uint8)
    for first, last in answers:
        weights |= ((begins < last) & (ends > first)).astype(np.uint8)
    return weights


def byte_offsets(text: str) -> np.ndarray:
    """Return begin and end of the character of each byte of a text in UTF-8, int64 [N, 2]."""
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (code_points >= 0x80).astype(np.int64) + (code_points >= 0x800) + (code_points >= 0x10000)
    begins = np.repeat(np.arange(len(code_points), dtype=np.int64), sizes)
    return np.stack([begins, begins + 1], axis=1)
