"""Stored probabilities of a teacher: some ids and their estimated probabilities, for each prediction of a dataset.

They lie in `probabilities/<hash of the dataset>/` below a root. Part p has the sequences from p x `part_sequences` on.
A sequence of length L has L records, each with K ids, K probabilities in float16 and an entropy. `index.json` is
written last, and makes the folder valid. The hash of the dataset contains length, tokenizer and packing: a sequence has
one number in all jobs with these.

Shapes: R sequences, L length, K stored probabilities of a token.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from trainingjob_agent.shared_files import MAX_JSON_BYTES, UntrustedFileError, parse_untrusted_json
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import SMALL_VOCABULARY
from trainingjob_trainer.runtime.errors import TrainingError, is_permanent
from trainingjob_trainer.store.parallel_requests import map_in_flight
from trainingjob_trainer.store.port import Store

FOLDER = "probabilities"
"""The folder of all stored probabilities, below a root."""
FIELD = "spec.objective.distill.probabilities"
PART_BYTES = 64 * 2**20
MAX_REQUESTS = 16
MAX_SIZE = 1 << 40
"""Limit of each number of a description."""


class StoredRows(NamedTuple):
    """Stored probabilities of sequences."""

    ids: np.ndarray
    """int32 [R, L, K]."""
    shares: np.ndarray
    """Their probabilities, float16 [R, L, K]."""
    entropy: np.ndarray
    """Entropy of all probabilities in nats, float32 [R, L]."""


@dataclass(frozen=True)
class Description:
    """The content of index.json."""

    teacher: str
    """Hash of the teacher's parameters."""
    seed: int
    per_token: int
    vocab_size: int
    sequence_length: int
    num_sequences: int

    @property
    def record(self) -> np.dtype[Any]:
        """Return the format of a token; the numbers of `count_stored_bytes`."""
        id_dtype = "<u2" if self.vocab_size <= SMALL_VOCABULARY else "<u4"
        K = self.per_token
        return np.dtype([("ids", id_dtype, (K,)), ("shares", "<f2", (K,)), ("entropy", "<f4")])

    @property
    def sequence_bytes(self) -> int:
        """Return the bytes of a sequence."""
        return self.sequence_length * self.record.itemsize

    @property
    def part_sequences(self) -> int:
        """Return the sequences of each part but the last."""
        return max(PART_BYTES // self.sequence_bytes, 1)

    @property
    def num_parts(self) -> int:
        """Return the number of parts."""
        return -(-self.num_sequences // self.part_sequences)

    def sequences_of_part(self, part: int) -> range:
        """Return the numbers of the sequences of a part."""
        first = part * self.part_sequences
        return range(first, min(first + self.part_sequences, self.num_sequences))


@dataclass(frozen=True)
class StoredReader:
    """Stored probabilities of one dataset, open for reading."""

    store: Store
    folder: str
    description: Description

    def read(self, numbers: np.ndarray) -> StoredRows:
        """Return the stored probabilities of sequences [R].

        Raises:
            TrainingError: a part cannot be read, or is damaged.
        """
        description, L = self.description, self.description.sequence_length
        records = list(map_in_flight(self._read_sequence, map(int, numbers), MAX_REQUESTS))
        rows = np.frombuffer(b"".join(records), description.record).reshape(len(numbers), L)
        ids, shares = rows["ids"].astype(np.int32), rows["shares"]
        is_finite = np.isfinite(shares).all() and np.isfinite(rows["entropy"]).all()
        if not is_finite or (ids >= description.vocab_size).any() or (shares < 0).any():
            raise _damaged_error(self.store, self.folder, "has ids or probabilities out of range")
        return StoredRows(ids, np.ascontiguousarray(shares), np.ascontiguousarray(rows["entropy"]))

    def _read_sequence(self, number: int) -> bytes:
        size = self.description.sequence_bytes
        part, place = divmod(number, self.description.part_sequences)
        name = part_name(self.folder, part)
        found = _access(self.store, name, lambda: self.store.read_range(name, place * size, (place + 1) * size))
        if len(found) != size:
            raise _damaged_error(self.store, name, f"ends within sequence {number:,}")
        return found


def find_folder(dataset_hash: str) -> str:
    """Return the folder of a dataset's stored probabilities."""
    return f"{FOLDER}/{dataset_hash}"


def part_name(folder: str, part: int) -> str:
    """Return the name of a part in the store."""
    return f"{folder}/{part:06}.bin"


def write_index(store: Store, folder: str, description: Description) -> None:
    """Write the description, which makes the folder valid."""
    store.write(_index_name(folder), (json.dumps(asdict(description)).encode(),))


def read_index(store: Store, folder: str) -> Description | None:  # None: there is none
    """Return the description of a folder.

    Raises:
        UntrustedFileError: the file is no description.
    """
    name = _index_name(folder)
    try:
        found = parse_untrusted_json(name, store.read(name, MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    match found:
        case {
            "teacher": str(teacher),
            "seed": int(seed),
            "per_token": int(per_token),
            "vocab_size": int(vocab_size),
            "sequence_length": int(length),
            "num_sequences": int(number),
        } if all(0 < size < MAX_SIZE for size in (per_token, vocab_size, length, number)):
            return Description(teacher, seed, per_token, vocab_size, length, number)
    raise UntrustedFileError(f"{name} describes no probabilities")


def open_stored(store: Store, dataset_hash: str, num_sequences: int, spec: TrainingJobSpec) -> StoredReader:
    """Return the stored probabilities of a dataset, all of whose parts exist.

    Raises:
        TrainingError: they are missing, those of another vocabulary, or cut off.
    """
    folder, stored = find_folder(dataset_hash), spec.objective.probabilities if spec.objective else None
    assert stored is not None  # noqa: S101  # the caller checks it
    found = _access(store, folder, lambda: read_index(store, folder))
    if found is None:
        raise TrainingError(
            FailureReason.DATA,
            f"must hold the teacher's probabilities for the tokens of this job: {store.locate(folder)} is missing or "
            "incomplete. Run `trainingjob teach` with the data, tokenizer and sequenceLength of this job.",
            path=f"{FIELD}.uri",
            value=store.root,
        )
    if found.per_token != stored.per_token:
        raise TrainingError(
            FailureReason.CONFIG,
            f"must be {found.per_token}: {store.locate(folder)} has so many probabilities for each token.",
            path=f"{FIELD}.perToken",
            value=stored.per_token,
        )
    expected = spec.model.vocab_size, spec.training.sequence_length, num_sequences
    if (found.vocab_size, found.sequence_length, found.num_sequences) != expected:
        raise TrainingError(
            FailureReason.CONFIG,
            f"must be {found.vocab_size}: the teacher of {store.locate(folder)} has this vocabulary. It has "
            f"{found.num_sequences:,} sequences of {found.sequence_length:,} tokens, and the job {num_sequences:,} of "
            f"{spec.training.sequence_length:,}. Run `trainingjob teach` for the dimensions of this job.",
            path="spec.model.vocabSize",
            value=spec.model.vocab_size,
        )
    _check_sizes(store, folder, found)
    return StoredReader(store, folder, found)


def hash_descriptions(readers: list[StoredReader]) -> int:
    """Return a hash of the teachers of stored probabilities, above 0 and below 2^32."""
    description = json.dumps([asdict(reader.description) for reader in readers])
    return int.from_bytes(hashlib.sha256(description.encode()).digest()[:4]) or 1


def _check_sizes(store: Store, folder: str, found: Description) -> None:
    def measure(part: int) -> int:
        name = part_name(folder, part)
        return _access(store, name, lambda: store.size(name))

    for part, size in enumerate(map_in_flight(measure, range(found.num_parts), MAX_REQUESTS)):
        expected_size = len(found.sequences_of_part(part)) * found.sequence_bytes
        if size != expected_size:
            raise _damaged_error(
                store, part_name(folder, part), f"has {size:,} bytes and should have {expected_size:,}"
            )


def _access[T](store: Store, name: str, operation: Callable[[], T]) -> T:
    """Return what an access of the store returns.

    Raises:
        TrainingError: the object is missing or no file of this project, or the store refuses or does not respond.
    """
    try:
        return operation()
    except FileNotFoundError as error:
        raise _damaged_error(store, name, "is missing") from error
    except UntrustedFileError as error:
        raise _damaged_error(store, name, f"cannot be used, because {error}") from error
    except OSError as error:
        raise TrainingError(
            FailureReason.STORAGE,
            f"reading {store.locate(name)} failed: {error.strerror or error}. Check the volume or the bucket.",
            path=f"{FIELD}.uri",
            value=store.root,
            fatal=is_permanent(error),
        ) from error


def _damaged_error(store: Store, name: str, problem: str) -> TrainingError:
    return TrainingError(
        FailureReason.DATA,
        f"the stored probabilities are damaged: {store.locate(name)} {problem}. Delete it, and run `trainingjob "
        "teach` again, which writes what is missing.",
        path=f"{FIELD}.uri",
        value=store.root,
    )


def _index_name(folder: str) -> str:
    return f"{folder}/index.json"
