"""Tokenization: text to token ids, as bytes or with a tokenizer of the `tokenizers` library."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.tokenizer import HUGGING_FACE, SENTENCE_PIECE, Tokenizer
from trainingjob_trainer.data.chat.answer_weights import MarkedText, byte_offsets, weigh_tokens
from trainingjob_trainer.data.sentence_piece import SentencePieceTokenizer, TextEncoding, TextTokenizer
from trainingjob_trainer.data.sources.file_formats import describe_binary_format, describe_pointer_file
from trainingjob_trainer.data.token_bytes import count_token_bytes
from trainingjob_trainer.data.tokenization_stats import TokenizationStats
from trainingjob_trainer.huggingface.tokenizer_files import (
    BEGIN,
    END,
    TokenizerFiles,
    read_tokenizer_files,
    tokenizer_error,
)
from trainingjob_trainer.runtime.errors import TrainingError

NUM_BYTES = 256
BYTE_END_TOKEN = 256
MAX_BATCH_DOCUMENTS = 256
MAX_BATCH_BYTES = 1 << 20
"""Maximum text of a batch, unless one document is larger: its encodings are in memory at the same time."""


class EncodedDocument(NamedTuple):
    """The ids of a document or of a piece of it, and the weight of each of them in the loss."""

    ids: np.ndarray
    loss_weights: np.ndarray | None = None
    """Weight of the prediction of each id, of the same shape, whole numbers up to 255. None: 1 for each."""
    is_end: bool = True
    """Whether the document ends here. Otherwise its next piece follows."""


class WeighedDocument(NamedTuple):
    """The ids of a document, and the weight of each of them in the loss, uint8 of the same shape."""

    ids: np.ndarray
    loss_weights: np.ndarray


class DocumentEncoder:
    """Encodes documents as ids below `vocab_size`, each between the ids that begin and end documents, if there are any.

    Truncation, padding and dropout of a tokenizer file are disabled: they would lose, add or vary tokens.

    Raises:
        TrainingError: the tokenizer cannot be read, lacks the token, or has ids outside of the model's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        files = read_tokenizer_files(tokenizer)
        self.dtype = choose_dtype(vocab_size)
        self._tokenizer: TextTokenizer | None = None
        self.begin: int | None = None
        """The id that begins each document. None: there is none."""
        self.end: int | None = BYTE_END_TOKEN
        """The end-of-document id. None: there is none."""
        self.special_tokens = files.special_tokens
        """Special tokens for chat templates, by the names of `transformers`."""
        needed = NUM_BYTES + 1
        self.tokenizer_key: dict[str, object] = {"type": tokenizer.type, "endOfDocument": tokenizer.end_of_document}
        if files.content is not None:
            self.tokenizer_key["sha256"] = hashlib.sha256(files.content).hexdigest()
            self._tokenizer = _parse(files.content, tokenizer)
            if isinstance(self._tokenizer, tokenizers.Tokenizer) and _disable_modifications(self._tokenizer):
                self.tokenizer_key["whole"] = True  # else the hash would match a cache of truncated or padded text
            needed = 1 + max(_list_vocab(self._tokenizer, tokenizer).values())
            with _library_errors(tokenizer, "cannot encode an empty text"):
                begin, end = _name_bounds(self._tokenizer, files, tokenizer)
            self.begin = _find_token(self._tokenizer, begin, "spec.tokenizer.beginOfDocument")
            self.end = _find_token(self._tokenizer, end, "spec.tokenizer.endOfDocument")
            self.tokenizer_key["endOfDocument"] = end
            if begin is not None:
                self.tokenizer_key["beginOfDocument"] = begin
        self._section = tokenizer
        self.quality = TokenizationStats(self._tokenizer, self.end)
        if needed > vocab_size:
            raise TrainingError(
                FailureReason.DATA,
                f"must be at least {needed}: the tokenizer's ids go up to {needed - 1}. "
                f"Nearest legal value: {needed}; multiples of 128 run fastest: {-(-needed // 128) * 128}.",
                path="spec.model.vocabSize",
                value=vocab_size,
            )

    def count_token_bytes(self) -> np.ndarray:
        """Return the number of bytes of text of each id, uint32 [number of ids]. Special tokens have none.

        Raises:
            TrainingError: the tokenizer cannot decode a token.
        """
        if self._tokenizer is not None:
            with _library_errors(self._section, "cannot decode its tokens"):
                return count_token_bytes(self._tokenizer)
        numbers = np.ones(NUM_BYTES + 1, np.uint32)
        numbers[BYTE_END_TOKEN] = 0
        return numbers

    def encode_documents(self, documents: Iterable[bytes], name: str) -> Iterator[EncodedDocument]:
        """Yield each document of UTF-8 text, in order. Messages contain `name`.

        The tokenizer encodes a batch of documents on all CPUs. Batches do not change the ids.

        Raises:
            TrainingError: the tokenizer cannot encode a document.
        """
        for batch in batch_documents(documents, len):
            for ids in self._encode_batch(batch, name):
                yield EncodedDocument(self.bound(ids))

    @property
    def takes_pieces(self) -> bool:
        """Return whether the ids of a document are those of its pieces: tokens are bytes."""
        return self._tokenizer is None

    def encode_pieces(self, pieces: Iterable[bytes]) -> Iterator[EncodedDocument]:
        """Yield the ids of each piece of one document, if `takes_pieces`. No pieces are no document."""
        last: np.ndarray | None = None
        for piece in pieces:
            if last is not None:
                yield EncodedDocument(last, is_end=False)
            last = np.frombuffer(piece, np.uint8).astype(self.dtype)
        if last is not None:
            yield EncodedDocument(self.bound(last))

    def bound(self, ids: np.ndarray) -> np.ndarray:
        """Return the ids of a document with the ids that begin and end it."""
        first, last = ([] if token is None else [token] for token in (self.begin, self.end))
        return np.concatenate([np.array(first, self.dtype), ids, np.array(last, self.dtype)]) if first or last else ids

    def find_id(self, token: str, path: str) -> int:
        """Return the id of a token, which the field at a path of the spec names.

        Raises:
            TrainingError: it is not a token of the tokenizer.
        """
        found = _find_token(self._tokenizer, token, path) if self._tokenizer else None
        if found is None:
            message = "is not a token of the tokenizer, because its tokens are bytes."
            raise TrainingError(FailureReason.DATA, message, path=path, value=token)
        return found

    def encode_parts(self, documents: Iterable[Sequence[str]], name: str) -> Iterator[np.ndarray]:
        """Yield the ids of each part of some documents, in order, without those that begin and end documents.

        Raises:
            TrainingError: the tokenizer cannot encode a part.
        """
        parts = [(part, number > 0) for document in documents for number, part in enumerate(document)]
        assert self._tokenizer, "`find_id` has found tokens of it"  # noqa: S101
        encodings = self._encode(self._tokenizer, [part for part, _ in parts], name) if parts else ()
        for (part, is_continued), encoding in zip(parts, encodings, strict=True):
            self.quality.add(part, encoding, is_continued=is_continued)
            yield np.array(encoding.ids, self.dtype)

    def encode_marked(self, texts: Iterable[MarkedText], name: str) -> Iterator[WeighedDocument]:
        """Yield the ids of each text, in order, with weight 1 for those of its answers, and for the id that ends it.

        Raises:
            TrainingError: the tokenizer cannot encode a text.
        """
        for batch in batch_documents(texts, lambda text: len(text.text)):
            for marked, (ids, offsets) in zip(batch, self._encode_with_offsets(batch, name), strict=True):
                weights = weigh_tokens(offsets, marked.answers)
                yield self._bound_weighed(ids, weights) if marked.is_bounded else WeighedDocument(ids, weights)

    def _bound_weighed(self, ids: np.ndarray, weights: np.ndarray) -> WeighedDocument:
        bounds = int(self.begin is not None), int(self.end is not None)
        return WeighedDocument(self.bound(ids), np.pad(weights, bounds, constant_values=(0, 1)))

    def _encode_with_offsets(self, batch: Sequence[MarkedText], name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids of texts, and the characters that each id covers, int64 [N, 2]."""
        texts = [marked.text for marked in batch]
        if self._tokenizer is None:
            for text in texts:
                yield np.frombuffer(text.encode(), np.uint8).astype(self.dtype), byte_offsets(text)
            return
        for marked, encoding in zip(batch, self._encode(self._tokenizer, texts, name), strict=True):
            self.quality.add(marked.text, encoding, is_templated=not marked.is_bounded)
            yield np.array(encoding.ids, self.dtype), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def _encode_batch(self, documents: Sequence[bytes], name: str) -> Iterator[np.ndarray]:
        if self._tokenizer is None:
            yield from (np.frombuffer(document, np.uint8).astype(self.dtype) for document in documents)
            return
        texts = [document.decode() for document in documents]
        for text, encoding in zip(texts, self._encode(self._tokenizer, texts, name), strict=True):
            self.quality.add(text, encoding)
            yield np.array(encoding.ids, self.dtype)

    def encode_prompt(self, prompt: str, *, special_tokens: bool = False) -> list[int]:
        """Return the ids of a text that a model continues: as a document begins, without an end-of-document id.

        With `special_tokens`, the tokenizer's file adds its own instead, such as one for the beginning of a text.

        Raises:
            TrainingError: the tokenizer cannot encode the text.
        """
        if self._tokenizer is None:
            return list(prompt.encode(errors="replace"))
        name = f"the prompt {prompt!r}"
        (encoding,) = self._encode(self._tokenizer, [prompt], name, special_tokens=special_tokens)
        ids: list[int] = encoding.ids
        return ids if special_tokens or self.begin is None else [self.begin, *ids]

    def find_special_token(self, text: str) -> int | None:  # None: the text begins with none
        """Return the id of the special token with which a text begins."""
        if not isinstance(self._tokenizer, tokenizers.Tokenizer):
            return None
        special = self._tokenizer.get_added_tokens_decoder().items()
        return next((number for number, token in special if token.special and text.startswith(token.content)), None)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. Ids without a text are left out, and broken UTF-8 is shown as U+FFFD.

        Raises:
            TrainingError: the tokenizer cannot decode them.
        """
        if self._tokenizer is None:
            return bytes(token_id for token_id in ids if token_id < NUM_BYTES).decode(errors="replace")
        with _library_errors(self._section, "cannot decode ids"):
            text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _encode(
        self, tokenizer: TextTokenizer, texts: Sequence[str], name: str, *, special_tokens: bool = False
    ) -> Sequence[TextEncoding]:
        with _library_errors(self._section, f"cannot encode {name}"):
            encodings: Sequence[TextEncoding] = tokenizer.encode_batch(texts, add_special_tokens=special_tokens)
        return encodings


@contextmanager
def _library_errors(tokenizer: Tokenizer, problem: str) -> Iterator[None]:
    """Raise errors of the library as `TrainingError`."""
    try:
        yield
    except BaseException as error:
        if not _is_of_library(error):
            raise
        remedy = "Repair the tokenizer file: each token that it names must be in its vocabulary."
        raise tokenizer_error(tokenizer, f"{problem}: {error}. {remedy}") from error


def _is_of_library(error: BaseException) -> bool:
    """Return whether the library may have raised an error: a plain Exception, or a panic below BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def choose_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Return the number format of ids below `vocab_size`."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def batch_documents[T](documents: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield documents in batches of bounded number and size; a larger document is a batch."""
    batch: list[T] = []
    size = 0
    for document in documents:
        if batch and (len(batch) == MAX_BATCH_DOCUMENTS or size + size_of(document) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += size_of(document)
    if batch:
        yield batch


def _disable_modifications(parsed: tokenizers.Tokenizer) -> bool:
    """Disable everything that would change the ids of a document; return whether any of it was enabled."""
    dropout = getattr(parsed.model, "dropout", None)
    is_on = bool(parsed.truncation or parsed.padding or dropout)
    parsed.no_truncation()
    parsed.no_padding()
    if dropout:
        parsed.model.dropout = None
    return is_on


def _list_vocab(parsed: TextTokenizer, tokenizer: Tokenizer) -> dict[str, int]:
    vocab: dict[str, int] = parsed.get_vocab(with_added_tokens=True)
    if not vocab:
        message = "has no tokens. Save the tokenizer again after it was trained."
        raise tokenizer_error(tokenizer, message)
    return vocab


def _parse(content: bytes, tokenizer: Tokenizer) -> TextTokenizer:
    if tokenizer.type == SENTENCE_PIECE:
        return _parse_pieces(content, tokenizer)
    try:
        return tokenizers.Tokenizer.from_str(content.decode("utf-8-sig"))
    except BaseException as error:
        if not _is_of_library(error):
            raise
        what = describe_pointer_file(content) or _describe_wrong_file(content)
        message = f"is {what}." if what else f"is not a tokenizer.json of the `tokenizers` library: {error}."
        raise tokenizer_error(tokenizer, message) from error


def _parse_pieces(content: bytes, tokenizer: Tokenizer) -> SentencePieceTokenizer:
    try:
        return SentencePieceTokenizer(content)
    except ValueError as error:
        what = describe_pointer_file(content) or describe_binary_format(content)
        if not what and content.lstrip()[:1] == b"{":
            what = "JSON: set `type: tokenizers` if it is a tokenizer.json"
        message = f"is {what}." if what else f"is no SentencePiece model: {error}. Copy the file again."
        raise tokenizer_error(tokenizer, message) from error


def _describe_wrong_file(content: bytes) -> str:
    """Return what kind of file was given instead of a tokenizer.json, and what to do; empty: unknown."""
    save = "save the tokenizer with `save_pretrained` of its fast class, which writes tokenizer.json"
    try:
        content_json = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        if what := describe_binary_format(content):
            return what
        return f"not UTF-8 text, perhaps a SentencePiece model: set `type: sentencePiece`, or {save}"
    except ValueError:
        return "" if content.strip() else "empty"
    if isinstance(content_json, dict) and "tokenizer_class" in content_json:
        return "a tokenizer_config.json, not a tokenizer.json: name the file beside it, or " + save
    is_vocab = (
        isinstance(content_json, dict)
        and "model" not in content_json
        and all(type(token_id) is int for token_id in content_json.values())
    )
    return f"a vocab.json, not a tokenizer.json: {save}" if is_vocab and content_json else ""


def _name_bounds(
    parsed: TextTokenizer, files: TokenizerFiles, tokenizer: Tokenizer
) -> tuple[str | None, str | None]:  # None: documents have no such token
    """Return the tokens that begin and end documents: those of the spec, else those of the folder or model."""
    begin, end = tokenizer.begin_of_document, tokenizer.end_of_document
    if not isinstance(parsed, tokenizers.Tokenizer):
        return begin, end or parsed.find_end()
    if tokenizer.type != HUGGING_FACE:
        return begin, end
    of_folder = files.special_tokens.get(BEGIN)
    added = parsed.encode("", add_special_tokens=True).tokens[:1] == [of_folder]
    adds_begin = added if files.adds_begin is None else files.adds_begin
    return begin or (of_folder if adds_begin else None), end or files.special_tokens.get(END)


def _find_token(parsed: TextTokenizer, token: str | None, path: str) -> int | None:
    """Return the id of a token, which a field at a path names; None for none."""
    if token is None:
        return None
    number: int | None = parsed.token_to_id(token)
    if number is None:
        special = [token.content for token in parsed.get_added_tokens_decoder().values()]
        raise TrainingError(
            FailureReason.DATA,
            "is not a token of the tokenizer." + (f" Its special tokens: {', '.join(special[:8])}." if special else ""),
            path=path,
            value=token,
        )
    return number
