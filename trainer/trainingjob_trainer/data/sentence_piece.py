"""SentencePiece models with the methods of `tokenizers.Tokenizer` that encode text.

The model normalizes the text itself, as it did when it was trained.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import tokenizers

SPACE = "\u2581"
"""The character of pieces that stands for a space."""


class PieceEncoding(NamedTuple):
    """The ids of a text, and the characters [begin, end) that each covers."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class AddedPiece(NamedTuple):
    """A piece of the vocabulary beside those of text."""

    content: str
    special: bool


class SentencePieceTokenizer:
    """Tokenizer of a SentencePiece model.

    Raises:
        ValueError: the content is no SentencePiece model.
    """

    def __init__(self, content: bytes) -> None:
        if not content:
            raise ValueError("it is empty")
        import sentencepiece  # noqa: PLC0415  # here, because most jobs do not need the library

        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        self._pieces = [self._processor.id_to_piece(number) for number in range(self._processor.vocab_size())]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[PieceEncoding]:
        """Return the ids of texts. A model adds no special tokens."""
        del add_special_tokens
        mapped: list[dict[str, Any]] = self._processor.encode_as_offset_mapping(list(texts))
        return [PieceEncoding(encoding["ids"], _widen(encoding["offsets"])) for encoding in mapped]

    def encode(self, text: str, *, add_special_tokens: bool = False) -> PieceEncoding:
        """Return the ids of a text."""
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids. Ids outside of the model, and those of control pieces, have none."""
        del skip_special_tokens
        text: str = self._processor.decode([token_id for token_id in ids if token_id < len(self._pieces)])
        return text

    def get_vocab(self, *, with_added_tokens: bool = True) -> dict[str, int]:
        """Return the ids by piece."""
        del with_added_tokens
        return {piece: number for number, piece in enumerate(self._pieces)}

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece. None: the vocabulary lacks it."""
        number: int = self._processor.piece_to_id(token)
        return number if self._pieces[number] == token else None

    def get_added_tokens_decoder(self) -> dict[int, AddedPiece]:
        """Return the control pieces, which are never read in a text."""
        return {
            number: AddedPiece(piece, special=True)
            for number, piece in enumerate(self._pieces)
            if self._processor.is_control(number)
        }

    def to_str(self) -> str:
        """Return the part of a tokenizer.json that names the id of characters without a piece."""
        return json.dumps({"model": {"unk_id": self._processor.unk_id()}})

    def count_bytes(self) -> list[int]:
        """Return the bytes of text of each piece: none of control pieces and of the one for unknown characters."""
        processor = self._processor
        special = (processor.is_control, processor.is_unknown, processor.is_unused)
        return [
            0
            if any(is_kind(number) for is_kind in special)
            else 1
            if processor.is_byte(number)
            else len(piece.replace(SPACE, " ").encode())
            for number, piece in enumerate(self._pieces)
        ]

    def find_end(self) -> str | None:
        """Return the piece that the model declares as the end of a text. None: it declares none."""
        number: int = self._processor.eos_id()
        return self._pieces[number] if number >= 0 else None


type TextTokenizer = tokenizers.Tokenizer | SentencePieceTokenizer
type TextEncoding = tokenizers.Encoding | PieceEncoding


def _widen(offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return offsets in which all bytes of a character cover it: the model gives it to the last of them alone."""
    widened, following = [], (0, 0)
    for begin, end in reversed(offsets):
        following = (begin, following[1] if begin == end == following[0] else end)
        widened.append(following)
    return widened[::-1]
