"""Token cache: text is tokenized once, into a folder named by the hash of everything that decides its sequences.

`<uri>/data/<hash>/tokens.bin` holds the ids of all documents, concatenated. `index.json` in the same folder is written
last and makes it valid. Sequence r of length L is tokens[r x L : r x L + L + 1]. Sequences overlap by one token: the
last that a sequence predicts is the first of the next.

`<uri>/data/<job's uid>-<hash of the data sections>.json` names the token datasets of a job. With it, a restart does not
read the text again, and a change of the text under a running job has no effect. `.account.json` in the same folder
holds what was read and skipped, so that a restart reports it too.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainingjob_agent.shared_files import (
    MAX_JSON_BYTES,
    UntrustedFileError,
    open_untrusted,
    read_untrusted,
    read_untrusted_json,
    write_atomically,
)
from trainingjob_api.data_report import DataReport
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import RunConfig
from trainingjob_trainer.data.data_report import (
    DatasetReport,
    DocumentHasher,
    FileHash,
    build_data_report,
    describe_dataset,
    dump_reports,
    hash_file,
    load_reports,
    log_report,
)
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.sources.source_files import SourceFile, find_files, plural, printable
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.runtime.errors import TrainingError, foreign_error, storage_error

CACHE_FORMAT = 1
IDENTITY = re.compile(r"[0-9a-f]{64}")
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class TokenDataset:
    """Tokenized text, open for reading. `identity` is the hash that names it."""

    dataset_hash: str
    tokens: np.ndarray
    sequence_length: int

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences of `sequence_length` predictions in the text."""
        return (len(self.tokens) - 1) // self.sequence_length

    def sequences(self, numbers: np.ndarray) -> np.ndarray:
        """Return sequences [R, L + 1], int32."""
        starts = numbers.astype(np.int64)[:, None] * self.sequence_length
        taken: np.ndarray = self.tokens[starts + np.arange(self.sequence_length + 1)]
        return taken.astype(np.int32)


@dataclass(frozen=True)
class JobDatasets:
    """All token datasets of a job: the training text, and the evaluations' texts by name."""

    train: TokenDataset
    evaluations: dict[str, TokenDataset]
    report: DataReport


def prepare_datasets(root: Path, config: RunConfig, *, is_leader: bool) -> JobDatasets:
    """Return the job's token datasets. The leading process creates missing ones; the others wait for it.

    Raises:
        TrainingError: the text or the tokenizer cannot be used, or the folder cannot be written.
    """
    pointer = root / "data" / f"{config.job.uid}-{_hash_sections(config.spec)}.json"
    account = pointer.with_suffix(".account.json")
    try:
        if is_leader and not pointer.exists():
            pointer.parent.mkdir(exist_ok=True)
            made = {
                name: _create(root / "data", sources, config.spec) for name, sources in _sources_by_dataset(config.spec)
            }
            write_atomically(account, dump_reports([one.text for one in made.values()]).encode())
            write_atomically(pointer, json.dumps({name: one.identity for name, one in made.items()}).encode())
        while not pointer.exists():
            time.sleep(POLL_SECONDS)
        identities = _read_identities(pointer, config.spec)
        opened = {
            name: _open(root / "data", identities[name], config.spec.training.sequence_length)
            for name, _ in _sources_by_dataset(config.spec)
        }
        texts = _read_account(account)
    except OSError as error:
        raise storage_error(error, f"preparing the data in {root / 'data'}", str(root)) from error
    except UntrustedFileError as error:
        raise foreign_error(error, root / "data", str(root)) from error
    report = build_data_report(
        texts, len(opened[""].tokens), {name: one.num_sequences for name, one in opened.items()}, config.spec
    )
    if is_leader:
        log_report(report)
    return JobDatasets(opened[""], {name: index for name, index in opened.items() if name}, report)


def _read_identities(pointer: Path, spec: TrainingJobSpec) -> dict[str, str]:
    """Return the hash of each token dataset of a job.

    Raises:
        UntrustedFileError: the file is not one that `prepare_datasets` writes.
    """
    identities = read_untrusted_json(pointer)
    if isinstance(identities, dict) and all(
        isinstance(one := identities.get(name), str) and IDENTITY.fullmatch(one)
        for name, _ in _sources_by_dataset(spec)
    ):
        return identities
    raise UntrustedFileError(f"{pointer.name} names no token datasets")


def _read_account(account: Path) -> list[DatasetReport]:
    """Return the reports of the texts; empty if there are none, or they cannot be read."""
    try:
        return load_reports(read_untrusted(account, MAX_JSON_BYTES).decode(errors="replace"))
    except FileNotFoundError:
        return []
    except UntrustedFileError:
        return load_reports("")


def _read_description(path: Path) -> dict[str, Any]:
    """Return the content of index.json.

    Raises:
        UntrustedFileError: the file is not one that `_write` writes.
    """
    match read_untrusted_json(path):
        case {"dtype": "uint16" | "uint32", "numTokens": int(number), **others} as metadata if number > 0 and all(
            isinstance(others.get(name, kind()), kind) for name, kind in (("tokens", dict), ("warnings", list))
        ):
            return dict(metadata)
    raise UntrustedFileError(f"{path.name} describes no tokens")


type Sources = Sequence[tuple[str, TextSource]]


def _sources_by_dataset(spec: TrainingJobSpec) -> list[tuple[str, Sources]]:
    """Return the sources of each dataset, each with its path in the spec. The training text has the empty name."""
    train = [(f"spec.data.train[{place}]", source) for place, source in enumerate(spec.data.train)]
    held_out = [
        (evaluation.name, [(f"spec.evaluation[{place}]", evaluation)])
        for place, evaluation in enumerate(spec.evaluation)
    ]
    return [("", train), *held_out]


def _hash_sections(spec: TrainingJobSpec) -> str:
    """Return a hash of the parts of the spec that decide the sequences."""
    of_a_source = set(TextSource.model_fields)
    sources = [
        [source.model_dump(include=of_a_source, exclude_none=True) | {"pattern": source.glob} for _, source in sources]
        for _, sources in _sources_by_dataset(spec)
    ]
    parts = [CACHE_FORMAT, sources, spec.tokenizer.model_dump(), spec.training.sequence_length, spec.model.vocab_size]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _CreatedDataset:
    identity: str
    text: DatasetReport


def _create(folder: Path, sources: Sources, spec: TrainingJobSpec) -> _CreatedDataset:
    """Create the token dataset of some sources unless it exists."""
    encoder = DocumentEncoder(spec.tokenizer, spec.model.vocab_size)
    length = spec.training.sequence_length
    found = [(source, find_files(source, field)) for field, source in sources]
    files = [(file, hash_file(file)) for _, one in found for file in one.files]
    identity = _dataset_hash(files, encoder, length)
    described = folder / identity / "index.json"
    if not described.exists():
        _write(folder / identity, files, encoder, sources, length)
    said = _read_description(described)
    text = describe_dataset(found, files, said.get("tokens", {}), said.get("warnings", []), length)
    return _CreatedDataset(identity, text)


def _write(
    folder: Path,
    files: Sequence[tuple[SourceFile, FileHash]],
    encoder: DocumentEncoder,
    sources: Sources,
    length: int,
) -> None:
    """Tokenize the documents of files into a folder."""
    folder.mkdir(exist_ok=True)
    fresh = folder / f".tokens.{os.uname().nodename}.{os.getpid()}"
    tokens = {source.name: 0 for _, source in sources}
    fresh.unlink(missing_ok=True)  # it may be a link to a file that must not be overwritten
    try:
        with fresh.open("xb") as file:
            for source_file, hashed in files:
                hasher = DocumentHasher()
                for document in read_documents(source_file):
                    hasher.add(document)
                    if document:
                        ids = encoder.encode(document, printable(source_file.name))
                        file.write(ids.tobytes())
                        tokens[source_file.source.name] += len(ids)
                hashed.check(source_file, hasher.hexdigest())
            file.flush()
            os.fsync(file.fileno())
        num_tokens = sum(tokens.values())
        if num_tokens <= length:
            field, source = sources[0]
            given = "gives" if len(files) == 1 else "give"
            raise TrainingError(
                FailureReason.DATA,
                f"{plural(len(files), 'file')} {given} {plural(num_tokens, 'token')}, and one row takes "
                f"{length + 1:,}. Add text.",
                path=f"{field}.path",
                value=source.path,
            )
        fresh.replace(folder / "tokens.bin")
    finally:
        fresh.unlink(missing_ok=True)
    described = {
        "format": CACHE_FORMAT,
        "numTokens": num_tokens,
        "dtype": np.dtype(encoder.dtype).name,
        "tokens": tokens,
        "warnings": encoder.quality.list_warnings(),
    }
    write_atomically(folder / "index.json", json.dumps(described).encode())


def _dataset_hash(files: Sequence[tuple[SourceFile, FileHash]], encoder: DocumentEncoder, length: int) -> str:
    digest = hashlib.sha256(json.dumps([CACHE_FORMAT, encoder.tokenizer_key, length], sort_keys=True).encode())
    for file, hashed in files:
        digest.update(json.dumps([file.source.name, file.name, hashed.size, hashed.sha256]).encode())
    return digest.hexdigest()


def _open(folder: Path, identity: str, sequence_length: int) -> TokenDataset:
    described = _read_description(folder / identity / "index.json")
    path = folder / identity / "tokens.bin"
    dtype = np.dtype(described["dtype"])
    wanted = described["numTokens"] * dtype.itemsize
    with open_untrusted(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != wanted:
            raise TrainingError(
                FailureReason.STORAGE,
                f"{path} has {size} bytes and should have {wanted}. Delete {path.parent}: the text is then tokenised "
                "again.",
                path="spec.checkpoint.uri",
                value=folder.parent,
            )
        return TokenDataset(identity, np.memmap(file, dtype, mode="r"), sequence_length)
