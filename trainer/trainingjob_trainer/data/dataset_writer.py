"""Create a token dataset: tokenize its files in parts, join the parts, and pack the documents into sequences.

All hosts tokenize: part p is that of host p modulo their number. The leading host also takes parts that others have
not written yet, so it depends on none of them. Parts that exist are not written again, after a restart too.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from trainingjob_agent.shared_files import UntrustedFileError
from trainingjob_api.formats import FORMATS
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.data_report import DatasetReport, describe_dataset
from trainingjob_trainer.data.packing.loss_counts import count_without_loss
from trainingjob_trainer.data.packing.pack import pack_documents
from trainingjob_trainer.data.packing.pieces import Pieces, place_alone, place_without_bounds
from trainingjob_trainer.data.preparation.file_account import FileAccount
from trainingjob_trainer.data.preparation.listed_files import Manifest, Part, Sources, list_dataset
from trainingjob_trainer.data.preparation.part_progress import PartProgress
from trainingjob_trainer.data.preparation.parts import Encoders, PartAccount, PartWriter, make_encoders
from trainingjob_trainer.data.preparation.worker_pool import PartReport, ignore_parts, write_parts
from trainingjob_trainer.data.sources.source_files import plural
from trainingjob_trainer.data.token_dataset import (
    BYTES_DTYPE,
    PIECE_DTYPE,
    WEIGHT_DTYPE,
    dataset_file,
    read_description,
)
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
CACHE_FORMAT = 1
MAX_ACCOUNT_BYTES = 1 << 30
MIN_FILL_WITHOUT_WARNING = 0.9
"""Share of the positions that hold predictions, below which padding costs noticeable time."""


@dataclass(frozen=True)
class HostShare:
    """The share of a host in the preparation: every `count`-th part, from `rank` on.

    If slices train as replicas, all their hosts share the work, and `replica_hosts` is the number of hosts of one.
    None: one world has all hosts.
    """

    rank: int = 0
    count: int = 1
    replica_hosts: int | None = None

    @property
    def leads(self) -> bool:
        """Return whether the host creates the datasets. The others only help.

        Each replica has such a host, because no other slice may be there. The first one to be done serves all.
        """
        return self.rank % (self.replica_hosts or self.count) == 0

    def own_parts(self, manifest: Manifest) -> Sequence[int]:
        """Return the parts of this host."""
        return range(self.rank, len(manifest.parts), self.count)

    def all_parts(self, manifest: Manifest) -> Iterator[int]:
        """Yield the parts of this host, and then those of the others, each host in another order."""
        own, count = self.own_parts(manifest), len(manifest.parts)
        yield from own
        others = (*reversed(range(min(self.rank, count))), *reversed(range(self.rank, count)))
        yield from (part for part in others if part not in own)


@dataclass(frozen=True)
class CreatedDataset:
    """A dataset in the store: the name of its folder, and the report of its text."""

    folder: str
    text: DatasetReport


def plan_dataset(
    store: Store, sources: Sources, spec: TrainingJobSpec, paths: Mapping[str, str] = MappingProxyType({})
) -> PartWriter:
    """Return what writes the token dataset of some sources, in the folder that their hash names.

    `paths` has the path in the pods of each source whose files are elsewhere on this machine, by its place in the spec.

    Raises:
        TrainingError: the text or the tokenizer cannot be used.
    """
    manifest = list_dataset(sources)
    folder = manifest.hash(_settings(manifest, make_encoders(manifest, spec), spec), paths)
    return PartWriter(store, folder, manifest, spec)


def create_dataset(writer: PartWriter, share: HostShare, report: PartReport = ignore_parts) -> CreatedDataset:
    """Create a token dataset unless it exists.

    Raises:
        TrainingError: the text or the tokenizer cannot be used.
    """
    store, folder, manifest = writer.store, writer.folder, writer.manifest
    if not writer.is_dataset_complete:
        try:
            write_parts(writer, share.all_parts(manifest), report)
            _DatasetJoiner(writer).join()
        except (OSError, TrainingError):
            if not writer.is_dataset_complete:  # else another replica was faster, and has deleted the parts
                raise
        writer.delete_parts()
    description = read_description(store, folder)
    accounts = _read_accounts(store, folder, len(manifest.files))
    files = [(listed.file, account) for listed, account in zip(manifest.files, accounts, strict=True)]
    text = describe_dataset(manifest.found, files, description.get("rows", {}), description.get("warnings", []))
    return CreatedDataset(folder, text)


def help_to_create(store: Store, sources: Sources, spec: TrainingJobSpec, share: HostShare) -> None:
    """Tokenize the parts of this host, if there are several parts; the leading host does the rest.

    The leading host reports errors of the text. This host is silent about them.

    Raises:
        OSError: the folder cannot be written, and the dataset is not complete.
    """
    try:
        if len(list_dataset(sources).parts) == 1:
            return
        writer = plan_dataset(store, sources, spec)
    except TrainingError as error:
        LOG.info("this host tokenizes nothing: %s", error)
        return
    if writer.is_dataset_complete:
        return
    try:
        write_parts(writer, share.own_parts(writer.manifest), _log_part)
    except TrainingError as error:
        LOG.info("this host stops to tokenize: %s", error)
    except OSError:
        if not writer.is_dataset_complete:  # else the leading host was faster, and has deleted the parts
            raise
    if writer.is_dataset_complete:  # the leading host deletes no part any more
        writer.delete_parts()


def _log_part(part: int, progress: PartProgress | None) -> None:
    if progress is None:
        LOG.info("tokenized part %d", part + 1)


def _settings(manifest: Manifest, encoders: Encoders, spec: TrainingJobSpec) -> list[object]:
    """Return what decides the sequences beside the files."""
    answers = [{"answers": encoders.answers.key}] if encoders.answers else []
    has_ids = any(FORMATS[source.format].has_ids for source, _ in manifest.found)
    vocab = [{"vocabSize": spec.model.vocab_size}] if has_ids else []  # ids were checked against it
    packed = [{"packing": packing}] if (packing := spec.data.isolated_packing) else []
    middle = [{"fillInTheMiddle": encoders.middle.key}] if encoders.middle else []
    return [
        CACHE_FORMAT,
        encoders.text.tokenizer_key,
        spec.training.sequence_length,
        *answers,
        *packed,
        *vocab,
        *middle,
    ]


class _DatasetJoiner:
    """Joins the parts of a dataset."""

    def __init__(self, writer: PartWriter) -> None:
        self._writer = writer
        self._encoders = make_encoders(writer.manifest, writer.spec)
        self._length = writer.spec.training.sequence_length

    def join(self) -> None:
        """Write the files of the dataset; the description comes last."""
        writer, parts = self._writer, range(len(self._writer.manifest.parts))
        accounts = [writer.read_account(part) for part in parts]
        files = _merge_pieces(writer.manifest.parts, accounts)
        counts = sum((account.counts for account in accounts), Counter[str]())
        answers = sum((account.answer_counts for account in accounts), Counter[str]())
        warnings = self._encoders.list_warnings(counts, answers)
        tokens = self._count_tokens(files)
        description: dict[str, Any] = {
            "format": CACHE_FORMAT,
            "identity": self._hash_content(files),
            "numTokens": sum(tokens.values()),
            "dtype": np.dtype(self._encoders.text.dtype).name,
            "warnings": warnings,
        }
        has_pairs, packing = self._encoders.has_pairs, writer.spec.data.isolated_packing
        if has_pairs or packing:
            ends = self._read_ends(accounts)
            pieces = pack_documents(ends, self._length, packing) if packing else place_alone(ends)
            self._check_sequences(pieces.num_sequences, tokens, warnings)
            self._write("pieces.bin", (pieces.bounds.astype(PIECE_DTYPE).tobytes(),))
            self._write("rows.bin", (pieces.firsts.astype(PIECE_DTYPE).tobytes(),))
            description |= {"numPieces": len(pieces.bounds), "numRows": pieces.num_sequences}
            description["rows"] = _count_packed_rows(pieces, tokens)
            if has_pairs:
                description["hasPairs"] = True
                description["rows"] = {name: count // 2 for name, count in description["rows"].items()}
            else:
                description["warnings"] += _fill_warnings(pieces, self._length)
        else:
            num_sequences = (sum(tokens.values()) - 1) // self._length
            self._check_sequences(num_sequences, tokens, warnings)
            description["rows"] = _count_rows(tokens, self._length)
            pieces = place_without_bounds(num_sequences, self._length)
        self._write("tokens.bin", self._read_parts("tokens"))
        if self._encoders.has_weights:
            self._write("token_weights.bin", self._read_parts("weights"))
            description["hasWeights"] = True
            description["warnings"] += self._loss_warnings(pieces)
        token_bytes = self._encoders.text.count_token_bytes()
        self._write("token_bytes.bin", (token_bytes.astype(BYTES_DTYPE).tobytes(),))
        description["numIds"] = len(token_bytes)
        self._write("files.jsonl", (f"{json.dumps(file)}\n".encode() for file in files))
        self._write("index.json", (json.dumps(description).encode(),))

    def _count_tokens(self, files: Sequence[FileAccount]) -> dict[str, int]:
        tokens = {source.name: 0 for source, _ in self._writer.manifest.found}
        for listed, file in zip(self._writer.manifest.files, files, strict=True):
            tokens[listed.file.source.name] += file.tokens
        return tokens

    def _hash_content(self, files: Sequence[FileAccount]) -> str:
        """Return the hash of the documents, and of all else that decides the sequences.

        It does not depend on where the files lie, so it names the data of a checkpoint.
        """
        settings = _settings(self._writer.manifest, self._encoders, self._writer.spec)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for listed, file in zip(self._writer.manifest.files, files, strict=True):
            digest.update(json.dumps([listed.file.source.name, listed.file.name, file.size, file.sha256]).encode())
        return digest.hexdigest()

    def _read_ends(self, accounts: Sequence[PartAccount]) -> np.ndarray:
        """Return the end of each document in the tokens of the dataset, int64 [D]."""
        ends, first = [], 0
        for part, account in self._with_tokens(accounts):
            content = b"".join(self._writer.store.read_chunks(self._writer.file_name(part, "ends")))
            ends.append(np.frombuffer(content, PIECE_DTYPE) + first)
            first += sum(file.tokens for file in account.files)
        return np.concatenate(ends)

    def _read_parts(self, suffix: str) -> Iterator[bytes]:
        for part, _ in self._with_tokens(self._writer.manifest.parts):
            yield from self._writer.store.read_chunks(self._writer.file_name(part, suffix))

    def _with_tokens[T](self, values: Sequence[T]) -> Iterator[tuple[int, T]]:
        """Yield the number of each part that has tokens, with its value."""
        parts = enumerate(zip(self._writer.manifest.parts, values, strict=True))
        return ((number, value) for number, (part, value) in parts if not part.is_account)

    def _loss_warnings(self, pieces: Pieces) -> list[str]:
        """Return a warning if sequences train nothing, because no token of an answer is in them."""
        weights = (np.frombuffer(chunk, WEIGHT_DTYPE) for chunk in self._read_parts("weights"))
        count = count_without_loss(pieces, weights)
        if not count:  # always with `bestFit`: each document has a loss, and fits into a sequence
            return []
        warning = (
            f"{plural(count, 'row')} of {pieces.num_sequences:,} without a token of an answer, which take time and "
            "train nothing. Use `packing.type: bestFit`, or a greater `training.sequenceLength`."
        )
        return [warning]

    def _write(self, name: str, chunks: Iterator[bytes] | tuple[bytes, ...]) -> None:
        self._writer.store.write(dataset_file(self._writer.folder, name), chunks)

    def _check_sequences(self, num_sequences: int, tokens: dict[str, int], warnings: Sequence[str]) -> None:
        """Raise TrainingError if there is no sequence."""
        if num_sequences > 0:
            return
        first, num_files = self._writer.manifest.files[0].file, len(self._writer.manifest.files)
        given = "gives" if num_files == 1 else "give"
        raise TrainingError(
            FailureReason.DATA,
            f"{plural(num_files, 'file')} {given} {plural(sum(tokens.values()), 'token')}, and one row takes "
            f"{self._length + 1:,}. {' '.join(('Add text.', *warnings))}",
            path=f"{first.field}.{first.source.location_field}",
            value=first.source.location,
        )


def _merge_pieces(parts: Sequence[Part], accounts: Sequence[PartAccount]) -> list[FileAccount]:
    """Return the account of each file. That of a divided file gets the tokens of its pieces, which follow it."""
    files = list[FileAccount]()
    for part, account in zip(parts, accounts, strict=True):
        if part.span:
            (piece,), whole = account.files, files.pop()
            files.append(whole._replace(tokens=whole.tokens + piece.tokens))
        else:
            files += account.files
    return files


def _read_accounts(store: Store, folder: str, num_files: int) -> list[FileAccount]:
    """Return the accounts of all files of a dataset.

    Raises:
        UntrustedFileError: the file is not one that the joiner writes.
    """
    name = dataset_file(folder, "files.jsonl")
    try:
        accounts = [FileAccount(*json.loads(line)) for line in store.read(name, MAX_ACCOUNT_BYTES).splitlines()]
    except (TypeError, ValueError, RecursionError) as error:
        raise UntrustedFileError(f"{name} is no account of files: {error}") from error
    if len(accounts) != num_files:
        raise UntrustedFileError(f"{name} is the account of other files")
    return accounts


def _count_rows(tokens: Mapping[str, int], length: int) -> dict[str, int]:
    """Return how many sequences begin in each source; the sources are concatenated."""
    num_rows = (sum(tokens.values()) - 1) // length
    ends = np.cumsum([0, *tokens.values()])
    firsts = [min(-(-int(end) // length), num_rows) for end in ends]
    return {name: after - first for name, (first, after) in zip(tokens, pairwise(firsts), strict=True)}


def _count_packed_rows(pieces: Pieces, tokens: Mapping[str, int]) -> dict[str, int]:
    """Return how many sequences of packed documents begin in each source."""
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
