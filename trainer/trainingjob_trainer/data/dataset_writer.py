"""Create a token dataset: tokenize the documents of some sources into a folder that is named by what decides it."""

import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import Packing, TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.chat.answer_encoder import AnswerEncoder
from trainingjob_trainer.data.data_report import DatasetReport, DocumentHasher, FileHash, describe_dataset, hash_file
from trainingjob_trainer.data.packing.pack import pack_documents
from trainingjob_trainer.data.packing.pieces import Pieces
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.sources.source_files import SourceFile, find_files, plural, printable
from trainingjob_trainer.data.token_dataset import (
    PIECE_DTYPE,
    WEIGHT_DTYPE,
    dataset_file,
    description_name,
    read_description,
)
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store, has_object

CACHE_FORMAT = 1
CHUNK_BYTES = 1 << 20
MIN_FILL_WITHOUT_WARNING = 0.9
"""Share of the positions that hold predictions, below which padding costs noticeable time."""

type Sources = Sequence[tuple[str, TextSource]]
"""The sources of a dataset, each with its path in the spec."""
type HashedFiles = Sequence[tuple[SourceFile, FileHash]]


@dataclass(frozen=True)
class CreatedDataset:
    """A dataset in the store: the name of its folder, and the report of its text."""

    identity: str
    text: DatasetReport


def create_dataset(store: Store, sources: Sources, spec: TrainingJobSpec) -> CreatedDataset:
    """Create the token dataset of some sources unless it exists.

    Raises:
        TrainingError: the text or the tokenizer cannot be used.
    """
    encoder = DocumentEncoder(spec.tokenizer, spec.model.vocab_size)
    answers = _make_answer_encoder(encoder, sources, spec)
    length, packing = spec.training.sequence_length, spec.data.packing
    found = [(source, find_files(source, field)) for field, source in sources]
    files = [(file, hash_file(file)) for _, one in found for file in one.files]
    identity = _dataset_hash(files, encoder, answers, length, packing)
    if not has_object(store, description_name(identity)):
        writer = _DatasetWriter(store, identity, encoder, answers, packing, length)
        writer.write(files, sources)
    said = read_description(store, identity)
    text = describe_dataset(
        found, files, said.get("tokens", {}), said.get("warnings", []), length, said.get("rows", {})
    )
    return CreatedDataset(identity, text)


def _make_answer_encoder(
    encoder: DocumentEncoder, sources: Sources, spec: TrainingJobSpec
) -> AnswerEncoder | None:  # None: the sources hold plain text
    if not any(source.has_answers for _, source in sources):
        return None
    return AnswerEncoder(encoder, spec, has_messages=any(source.messages for _, source in sources))


def _dataset_hash(
    files: HashedFiles, encoder: DocumentEncoder, answers: AnswerEncoder | None, length: int, packing: Packing | None
) -> str:
    parts: list[object] = [CACHE_FORMAT, encoder.tokenizer_key, length]
    if answers:
        parts.append({"answers": answers.key})
    if packing and packing.isolates:
        parts.append({"packing": packing.type})
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for file, hashed in files:
        digest.update(json.dumps([file.source.name, file.name, hashed.size, hashed.sha256]).encode())
    return digest.hexdigest()


class _DatasetWriter:
    """Writes the files of one dataset."""

    def __init__(
        self,
        store: Store,
        identity: str,
        encoder: DocumentEncoder,
        answers: AnswerEncoder | None,
        packing: Packing | None,
        length: int,
    ) -> None:
        self._store = store
        self._identity = identity
        self._encoder = encoder
        self._answers = answers
        self._packing = packing if packing and packing.isolates else None
        self._length = length
        self._ends = array("q")
        """The end of each document in the tokens, if the documents are packed."""

    def write(self, files: HashedFiles, sources: Sources) -> None:
        """Tokenize the documents of files, and pack them."""
        tokens = {source.name: 0 for _, source in sources}
        with tempfile.TemporaryFile() as weights:
            self._write_file("tokens.bin", self._tokenize(files, sources, tokens, weights))
            has_weights = weights.tell() > 0
            if has_weights:
                weights.seek(0)
                self._write_file("token_weights.bin", iter(lambda: weights.read(CHUNK_BYTES), b""))
        described: dict[str, Any] = {
            "format": CACHE_FORMAT,
            "numTokens": sum(tokens.values()),
            "dtype": np.dtype(self._encoder.dtype).name,
            "tokens": tokens,
            "warnings": [*self._encoder.quality.list_warnings(), *self._answer_warnings()],
        }
        if has_weights:
            described["hasWeights"] = True
        if self._packing:
            pieces = pack_documents(np.array(self._ends, np.int64), self._length, self._packing.type)
            self._check_sequences(pieces.num_sequences, tokens, files, sources)
            self._write_file("pieces.bin", (pieces.bounds.astype(PIECE_DTYPE).tobytes(),))
            self._write_file("rows.bin", (pieces.firsts.astype(PIECE_DTYPE).tobytes(),))
            described |= {"numPieces": len(pieces.bounds), "numRows": pieces.num_sequences}
            described["rows"] = _count_rows(pieces, tokens)
            described["warnings"] += _fill_warnings(pieces, self._length)
        self._store.write(description_name(self._identity), (json.dumps(described).encode(),))

    def _tokenize(
        self, files: HashedFiles, sources: Sources, tokens: dict[str, int], weights: IO[bytes]
    ) -> Iterator[bytes]:
        """Yield the ids of all documents. Count them in `tokens`, by source, and append their loss weights."""
        end = 0
        for source_file, hashed in files:
            hasher = DocumentHasher()
            documents = filter(None, hasher.add_each(read_documents(source_file)))
            encoder = self._answers if self._answers and source_file.source.has_answers else self._encoder
            for document in encoder.encode_documents(documents, printable(source_file.name)):
                tokens[source_file.source.name] += len(document.ids)
                if self._packing:
                    end += len(document.ids)
                    self._ends.append(end)
                if document.loss_weights is not None:
                    weights.write(document.loss_weights.astype(WEIGHT_DTYPE).tobytes())
                yield document.ids.tobytes()
            hashed.check(source_file, hasher.hexdigest())
        if not self._packing:
            self._check_sequences((sum(tokens.values()) - 1) // self._length, tokens, files, sources)

    def _check_sequences(
        self, num_sequences: int, tokens: dict[str, int], files: HashedFiles, sources: Sources
    ) -> None:
        """Raise TrainingError if there is no sequence."""
        if num_sequences > 0:
            return
        field, source = sources[0]
        given = "gives" if len(files) == 1 else "give"
        raise TrainingError(
            FailureReason.DATA,
            f"{plural(len(files), 'file')} {given} {plural(sum(tokens.values()), 'token')}, and one row takes "
            f"{self._length + 1:,}. {' '.join(('Add text.', *self._answer_warnings()))}",
            path=f"{field}.path",
            value=source.path,
        )

    def _answer_warnings(self) -> list[str]:
        return self._answers.list_warnings() if self._answers else []

    def _write_file(self, name: str, chunks: Iterator[bytes] | tuple[bytes, ...]) -> None:
        self._store.write(dataset_file(self._identity, name), chunks)


def _count_rows(pieces: Pieces, tokens: dict[str, int]) -> dict[str, int]:
    """Return how many sequences begin in each source."""
    ends = np.cumsum(list(tokens.values()))
    begins = pieces.bounds[pieces.firsts[:-1], 0]
    counts = np.bincount(np.searchsorted(ends, begins, side="right"), minlength=len(tokens))
    return dict(zip(tokens, map(int, counts), strict=True))


def _fill_warnings(pieces: Pieces, length: int) -> list[str]:
    """Return a warning if much of the sequences is padding."""
    fill = float(pieces.bounds[:, 1].sum()) / (pieces.num_sequences * length)
    if fill >= MIN_FILL_WITHOUT_WARNING:
        return []
    warning = (
        f"packing: {1 - fill:.0%} of the positions are padding: {plural(pieces.num_sequences, 'row')} of {length:,} "
        f"tokens hold {plural(len(pieces.bounds), 'document')}. Use a smaller `training.sequenceLength`, or "
        "`packing.type: concat`."
    )
    return [warning]
