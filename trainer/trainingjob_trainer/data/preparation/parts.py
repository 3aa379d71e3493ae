"""One part of a dataset: the tokens of some files, in objects of the store. The account of a part is written last.

Two processes may write the same part. They write the same content, so it does not matter which one is last.
"""

import json
import logging
import re
import tempfile
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import IO, Any, NamedTuple

import numpy as np

from trainingjob_agent.shared_files import MAX_JSON_BYTES, UntrustedFileError, parse_untrusted_json
from trainingjob_api.formats import FORMATS
from trainingjob_api.spec.data import SYNTHETIC, TEXT, TextSource, TrainSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.chat.answer_encoder import AnswerEncoder
from trainingjob_trainer.data.middle_encoder import MiddleEncoder
from trainingjob_trainer.data.preparation.file_account import FileAccount, FileCounter
from trainingjob_trainer.data.preparation.listed_files import Manifest
from trainingjob_trainer.data.preparation.part_progress import PartMeter, PartProgress, ignore_progress
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.sources.readers.text import read_pieces
from trainingjob_trainer.data.sources.source_files import BadRecords, SourceFile, printable
from trainingjob_trainer.data.token_arrays import RandomTokenEncoder, TokenArrayEncoder
from trainingjob_trainer.data.token_dataset import PIECE_DTYPE, WEIGHT_DTYPE, dataset_file, description_name
from trainingjob_trainer.data.tokenizers import DocumentEncoder, EncodedDocument
from trainingjob_trainer.store.port import Store, has_object

LOG = logging.getLogger(__name__)
CHUNK_BYTES = 1 << 20
PART_ACCOUNT = re.compile(r"[0-9]{5,18}\.json")
PARTS = "parts"
"""The folder of the parts, below that of a dataset. It is deleted when the dataset is complete."""
PARTS_WITH_PIECES = "parts-with-pieces"
"""The folder of parts if a file is divided: trainers before 0.1 number the parts without pieces."""


class Encoders(NamedTuple):
    """What turns the documents of a dataset into tokens."""

    text: DocumentEncoder
    answers: AnswerEncoder | None
    """The encoder of conversations and completions. None: the sources hold plain text."""
    arrays: TokenArrayEncoder
    random: RandomTokenEncoder
    middle: MiddleEncoder | None = None
    """The encoder of plain text for training. None: it is that of all plain text."""

    def choose(
        self, source: TextSource
    ) -> DocumentEncoder | AnswerEncoder | TokenArrayEncoder | RandomTokenEncoder | MiddleEncoder:
        """Return the encoder of the documents of a source."""
        if FORMATS[source.format].has_ids:
            return self.random if source.format == SYNTHETIC else self.arrays
        return self.answers if self.answers and source.has_answers else self.middle or self.text

    @property
    def has_weights(self) -> bool:
        """Return whether the tokens have loss weights."""
        return self.answers is not None and self.answers.masks_prompts

    @property
    def has_pairs(self) -> bool:
        """Return whether each two documents are a pair of answers."""
        return self.answers is not None and self.answers.has_pairs

    def list_warnings(self, text: Counter[str], answers: Counter[str]) -> list[str]:
        """Return warnings about documents, given the counts of all parts."""
        if self.has_pairs:  # sequences separate them
            text = Counter({**text, "documents": 0})
        return [*self.text.quality.list_warnings(text), *(self.answers.list_warnings(answers) if self.answers else [])]


def make_encoders(manifest: Manifest, spec: TrainingJobSpec) -> Encoders:
    """Return encoders that have counted nothing yet.

    Raises:
        TrainingError: the tokenizer or the chat template cannot be used.
    """
    encoder = DocumentEncoder(spec.tokenizer, spec.model.vocab_size)
    ids = TokenArrayEncoder(spec.model.vocab_size), RandomTokenEncoder(spec.model.vocab_size)
    sources, settings = [source for source, _ in manifest.found], spec.data.fill_in_the_middle
    is_held_out = not any(isinstance(source, TrainSource) for source in sources)
    middle = MiddleEncoder(encoder, settings, spec.training.seed) if settings and not is_held_out else None
    if not any(source.has_answers for source in sources):
        return Encoders(encoder, None, *ids, middle)
    return Encoders(encoder, AnswerEncoder(encoder, spec, sources), *ids, middle)


class PartAccount(NamedTuple):
    """What a part holds."""

    files: tuple[FileAccount, ...]
    counts: Counter[str]
    """Counts of the tokenizer, for warnings."""
    answer_counts: Counter[str]
    """Counts of conversations and completions, for warnings."""


@dataclass(frozen=True)
class PartWriter:
    """Tokenizes the parts of one dataset. A process of a worker pool has a copy."""

    store: Store
    folder: str
    """The folder of the dataset, below that of all datasets."""
    manifest: Manifest
    spec: TrainingJobSpec

    def has_part(self, part: int) -> bool:
        """Return whether a part is complete, or the dataset that replaces it."""
        return has_object(self.store, self.file_name(part, "json")) or self.is_dataset_complete

    @property
    def is_dataset_complete(self) -> bool:
        """Return whether the dataset exists."""
        return has_object(self.store, description_name(self.folder))

    def list_complete_parts(self) -> list[int]:
        """Return the parts that are complete, those of other hosts included."""
        names = [entry.name for entry in self.store.list_folder(dataset_file(self.folder, self._parts_folder))]
        return [int(name.removesuffix(".json")) for name in names if PART_ACCOUNT.fullmatch(name)]

    def file_name(self, part: int, suffix: str) -> str:
        """Return the name of an object of a part in the store."""
        return dataset_file(self.folder, f"{self._parts_folder}/{part:05}.{suffix}")

    def delete_parts(self) -> None:
        """Delete the parts, which the complete dataset replaces. A failure is logged: nothing depends on it.

        Another host may write a part meanwhile, and deletes it afterwards.
        """
        for name in (PARTS, PARTS_WITH_PIECES):
            folder = dataset_file(self.folder, name)
            try:
                self.store.delete_tree(folder)
            except OSError as error:
                LOG.warning("cannot delete the parts of a complete dataset folder=%s error=%s", folder, error)

    @property
    def _parts_folder(self) -> str:
        return PARTS_WITH_PIECES if self.manifest.has_pieces else PARTS

    def write(self, part: int, report: Callable[[PartProgress], None] = ignore_progress) -> None:
        """Tokenize the files of a part, and report how far it is from time to time.

        Raises:
            TrainingError: a file or the tokenizer cannot be used, or a file has changed.
        """
        if self.manifest.parts[part].is_account:
            self._write_account(part, [self._count(part)], Counter[str](), Counter[str]())
            return
        encoders = make_encoders(self.manifest, self.spec)
        ends, accounts = array("q"), list[FileAccount]()
        with tempfile.TemporaryFile() as weights:
            tokens = self._tokenize(part, encoders, ends, weights, accounts, PartMeter(report))
            self.store.write(self.file_name(part, "tokens"), tokens)
            if encoders.has_weights:
                weights.seek(0)
                chunks = iter(lambda: weights.read(CHUNK_BYTES), b"")
                self.store.write(self.file_name(part, "weights"), chunks)
        self.store.write(self.file_name(part, "ends"), (np.array(ends, PIECE_DTYPE).tobytes(),))
        answers = encoders.answers.counts if encoders.answers else Counter[str]()
        self._write_account(part, accounts, encoders.text.quality.counts, answers)

    def _write_account(
        self, part: int, files: Sequence[FileAccount], counts: Counter[str], answers: Counter[str]
    ) -> None:
        account = {"files": files, "counts": counts, "answerCounts": answers}
        self.store.write(self.file_name(part, "json"), (json.dumps(account).encode(),))

    def _count(self, part: int) -> FileAccount:
        """Return the account of a file that is divided, without its tokens."""
        (number,) = self.manifest.parts[part].files
        listed = self.manifest.files[number]
        file, counter = replace(listed.file, bad_records=BadRecords()), FileCounter(listed.file.source)
        deque(counter.add_each(read_documents(file)), maxlen=0)
        listed.check_unchanged()
        return counter.account(file.bad_records)

    def _tokenize(
        self,
        part: int,
        encoders: Encoders,
        ends: array[int],
        weights: IO[bytes],
        accounts: list[FileAccount],
        meter: PartMeter,
    ) -> Iterator[bytes]:
        """Yield the ids of all documents of a part. Add their ends, their loss weights, and an account of each file."""
        end = 0
        for number in self.manifest.parts[part].files:
            listed = self.manifest.files[number]
            counter = FileCounter(listed.file.source)
            file = replace(listed.file, span=self.manifest.parts[part].span, bad_records=BadRecords())
            for document in _encode(file, counter, encoders):
                counter.tokens += len(document.ids)
                end += len(document.ids)
                if document.is_end:
                    ends.append(end)
                if encoders.has_weights:
                    given = document.loss_weights
                    weights.write(
                        (np.ones(len(document.ids)) if given is None else given).astype(WEIGHT_DTYPE).tobytes()
                    )
                yield document.ids.tobytes()
                meter.update(listed, counter)
            listed.check_unchanged()
            meter.complete_file(listed, counter)
            accounts.append(counter.account(file.bad_records))

    def read_account(self, part: int) -> PartAccount:
        """Return what a part holds.

        Raises:
            UntrustedFileError: the file is not one that `write` writes.
        """
        name = self.file_name(part, "json")
        content: Any = parse_untrusted_json(name, self.store.read(name, MAX_JSON_BYTES))
        try:
            files = tuple(FileAccount(*row) for row in content["files"])
            counts, answer_counts = Counter[str](content["counts"]), Counter[str](content["answerCounts"])
        except (TypeError, KeyError) as error:
            raise UntrustedFileError(f"{name} is no account of a part: {error}") from error
        if len(files) != len(self.manifest.parts[part].files):
            raise UntrustedFileError(f"{name} is the account of other files")
        return PartAccount(files, counts, answer_counts)


def _encode(file: SourceFile, counter: FileCounter, encoders: Encoders) -> Iterator[EncodedDocument]:
    """Yield the documents of a file, or the pieces of its only document if they give the same ids."""
    encoder = encoders.choose(file.source)
    if file.source.format == TEXT and isinstance(encoder, DocumentEncoder) and encoder.takes_pieces:
        with closing(read_pieces(file)) as pieces:
            yield from encoder.encode_pieces(counter.add_document(pieces))
        return
    with closing(read_documents(file)) as documents:  # an encoder may raise while the file is open
        yield from encoder.encode_documents(counter.add_each(documents), printable(file.name))
