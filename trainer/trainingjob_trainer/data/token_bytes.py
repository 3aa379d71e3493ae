"""Bytes of text of each token, for bits per byte.

Special tokens and the unknown token have no bytes. The numbers are exact for byte-level tokenizers, and for
vocabularies of SentencePiece. Other tokenizers join words by a space, which counts with the word after it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from trainingjob_trainer.data.sentence_piece import SentencePieceTokenizer, TextTokenizer
from trainingjob_trainer.data.tokenization_stats import find_unknown

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""A token of a SentencePiece vocabulary that stands for one byte."""


def count_token_bytes(tokenizer: TextTokenizer) -> np.ndarray:
    """Return the number of bytes of each id, uint32 [number of ids]."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return np.array(tokenizer.count_bytes(), np.uint32)
    vocab: Mapping[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    numbers = np.zeros(1 + max(vocab.values()), np.uint32)
    for number, token in added.items():
        numbers[number] = 0 if token.special else len(token.content.encode())
    ordinary = {token: number for token, number in vocab.items() if number not in added}
    for number, count in zip(ordinary.values(), _count_ordinary(tokenizer, ordinary), strict=True):
        numbers[number] = count
    unknown = find_unknown(tokenizer)
    if unknown is not None:
        numbers[unknown] = 0
    return numbers


def _count_ordinary(tokenizer: tokenizers.Tokenizer, vocab: Mapping[str, int]) -> list[int]:
    """Return the number of bytes of each token."""
    tokenizer_json = json.loads(tokenizer.to_str())
    if any(_has_part(tokenizer_json[name], "ByteLevel") for name in ("pre_tokenizer", "decoder")):
        byte_characters = frozenset(ByteLevel.alphabet())
        return [len(token) if byte_characters.issuperset(token) else len(token.encode()) for token in vocab]
    texts = _decode_after_token(tokenizer, vocab)
    if not _has_part(tokenizer_json["decoder"], "ByteFallback"):
        return texts
    return [1 if BYTE_TOKEN.fullmatch(token) else count for token, count in zip(vocab, texts, strict=True)]


def _has_part(part: Any, kind: str) -> bool:
    """Return whether a part of a tokenizer file, or any inside it, is of a kind."""
    if isinstance(part, dict):
        return part.get("type") == kind or any(_has_part(value, kind) for value in part.values())
    return isinstance(part, list) and any(_has_part(item, kind) for item in part)


def _decode_after_token(tokenizer: tokenizers.Tokenizer, vocab: Mapping[str, int]) -> list[int]:
    """Return the bytes that each token adds to the text of another one: at its beginning, a space may be missing."""
    if not vocab:
        return []
    first = min(vocab, key=lambda token: (not (token.isascii() and token.isalpha()), vocab[token]))
    first_text, *pairs = tokenizer.decode_batch(
        [[vocab[first]], *([vocab[first], number] for number in vocab.values())], skip_special_tokens=False
    )
    return [max(len(pair.encode()) - len(first_text.encode()), 0) for pair in pairs]
