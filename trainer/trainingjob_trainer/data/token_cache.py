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
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainingjob_agent.shared_files import MAX_JSON_BYTES, UntrustedFileError, parse_untrusted_json
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
from trainingjob_trainer.store.port import Store

FOLDER = "data"
"""The folder of all token datasets, below the root of the checkpoint store."""
CACHE_FORMAT = 1
IDENTITY = re.compile(r"[0-9a-f]{64}")
POLL_SECONDS = 0.05
SEEK_END = 2
"""The end of a file, as `os.SEEK_END`."""


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


def prepare_datasets(store: Store, config: RunConfig, *, is_leader: bool) -> JobDatasets:
    """Return the job's token datasets. The leading process creates missing ones; the others wait for it.

    Raises:
        TrainingError: the text or the tokenizer cannot be used, or the folder cannot be written.
    """
    name = f"{FOLDER}/{config.job.uid}-{_hash_sections(config.spec)}"
    pointer, account = f"{name}.json", f"{name}.account.json"
    try:
        if is_leader and not _exists(store, pointer):
            made = {name: _create(store, sources, config.spec) for name, sources in _sources_by_dataset(config.spec)}
            store.write(account, (dump_reports([one.text for one in made.values()]).encode(),))
            store.write(pointer, (json.dumps({name: one.identity for name, one in made.items()}).encode(),))
        while not _exists(store, pointer):
            time.sleep(POLL_SECONDS)
        identities = _read_identities(store, pointer, config.spec)
        opened = {
            name: _open(store, identities[name], config.spec.training.sequence_length)
            for name, _ in _sources_by_dataset(config.spec)
        }
        texts = _read_account(store, account)
    except OSError as error:
        raise storage_error(error, f"preparing the data in {store.locate(FOLDER)}", store.root) from error
    except UntrustedFileError as error:
        raise foreign_error(error, store.locate(FOLDER), store.root) from error
    report = build_data_report(
        texts, len(opened[""].tokens), {name: one.num_sequences for name, one in opened.items()}, config.spec
    )
    if is_leader:
        log_report(report)
    return JobDatasets(opened[""], {name: index for name, index in opened.items() if name}, report)


def _exists(store: Store, name: str) -> bool:
    try:
        store.size(name)
    except FileNotFoundError:
        return False
    return True


def _read_json(store: Store, name: str) -> Any:
    return parse_untrusted_json(name, store.read(name, MAX_JSON_BYTES))


def _read_identities(store: Store, pointer: str, spec: TrainingJobSpec) -> dict[str, str]:
    """Return the hash of each token dataset of a job.

    Raises:
        UntrustedFileError: the file is not one that `prepare_datasets` writes.
    """
    identities = _read_json(store, pointer)
    if isinstance(identities, dict) and all(
        isinstance(one := identities.get(name), str) and IDENTITY.fullmatch(one)
        for name, _ in _sources_by_dataset(spec)
    ):
        return identities
    raise UntrustedFileError(f"{pointer} names no token datasets")


def _read_account(store: Store, account: str) -> list[DatasetReport]:
    """Return the reports of the texts; empty if there are none, or they cannot be read."""
    try:
        return load_reports(store.read(account, MAX_JSON_BYTES).decode(errors="replace"))
    except FileNotFoundError:
        return []
    except UntrustedFileError:
        return load_reports("")


def _read_description(store: Store, identity: str) -> dict[str, Any]:
    """Return the content of index.json.

    Raises:
        UntrustedFileError: the file is not one that `_write` writes.
    """
    name = _description_name(identity)
    match _read_json(store, name):
        case {"dtype": "uint16" | "uint32", "numTokens": int(number), **others} as metadata if number > 0 and all(
            isinstance(others.get(key, kind()), kind) for key, kind in (("tokens", dict), ("warnings", list))
        ):
            return dict(metadata)
    raise UntrustedFileError(f"{name} describes no tokens")


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


def _create(store: Store, sources: Sources, spec: TrainingJobSpec) -> _CreatedDataset:
    """Create the token dataset of some sources unless it exists."""
    encoder = DocumentEncoder(spec.tokenizer, spec.model.vocab_size)
    length = spec.training.sequence_length
    found = [(source, find_files(source, field)) for field, source in sources]
    files = [(file, hash_file(file)) for _, one in found for file in one.files]
    identity = _dataset_hash(files, encoder, length)
    if not _exists(store, _description_name(identity)):
        _write(store, identity, files, encoder, sources, length)
    said = _read_description(store, identity)
    text = describe_dataset(found, files, said.get("tokens", {}), said.get("warnings", []), length)
    return _CreatedDataset(identity, text)


def _description_name(identity: str) -> str:
    return f"{FOLDER}/{identity}/index.json"


def _tokens_name(identity: str) -> str:
    return f"{FOLDER}/{identity}/tokens.bin"


def _write(
    store: Store,
    identity: str,
    files: Sequence[tuple[SourceFile, FileHash]],
    encoder: DocumentEncoder,
    sources: Sources,
    length: int,
) -> None:
    """Tokenize the documents of files into the store."""
    tokens = {source.name: 0 for _, source in sources}

    def tokenize() -> Iterator[bytes]:
        for source_file, hashed in files:
            hasher = DocumentHasher()
            documents = filter(None, hasher.add_each(read_documents(source_file)))
            for ids in encoder.encode_documents(documents, printable(source_file.name)):
                tokens[source_file.source.name] += len(ids)
                yield ids.tobytes()
            hashed.check(source_file, hasher.hexdigest())
        _check_length(sum(tokens.values()), length, len(files), sources)

    store.write(_tokens_name(identity), tokenize())
    described = {
        "format": CACHE_FORMAT,
        "numTokens": sum(tokens.values()),
        "dtype": np.dtype(encoder.dtype).name,
        "tokens": tokens,
        "warnings": encoder.quality.list_warnings(),
    }
    store.write(_description_name(identity), (json.dumps(described).encode(),))


def _check_length(num_tokens: int, length: int, num_files: int, sources: Sources) -> None:
    """Raise TrainingError if the tokens do not fill one row."""
    if num_tokens > length:
        return
    field, source = sources[0]
    given = "gives" if num_files == 1 else "give"
    raise TrainingError(
        FailureReason.DATA,
        f"{plural(num_files, 'file')} {given} {plural(num_tokens, 'token')}, and one row takes "
        f"{length + 1:,}. Add text.",
        path=f"{field}.path",
        value=source.path,
    )


def _dataset_hash(files: Sequence[tuple[SourceFile, FileHash]], encoder: DocumentEncoder, length: int) -> str:
    digest = hashlib.sha256(json.dumps([CACHE_FORMAT, encoder.tokenizer_key, length], sort_keys=True).encode())
    for file, hashed in files:
        digest.update(json.dumps([file.source.name, file.name, hashed.size, hashed.sha256]).encode())
    return digest.hexdigest()


def _open(store: Store, identity: str, sequence_length: int) -> TokenDataset:
    described = _read_description(store, identity)
    dtype = np.dtype(described["dtype"])
    wanted = described["numTokens"] * dtype.itemsize
    with store.open_local(_tokens_name(identity)) as file:
        size = file.seek(0, SEEK_END)
        if size != wanted:
            raise TrainingError(
                FailureReason.STORAGE,
                f"{store.locate(_tokens_name(identity))} has {size} bytes and should have {wanted}. Delete "
                f"{store.locate(f'{FOLDER}/{identity}')}: the text is then tokenised again.",
                path="spec.checkpoint.uri",
                value=store.root,
            )
        return TokenDataset(identity, np.memmap(file, dtype, mode="r"), sequence_length)
