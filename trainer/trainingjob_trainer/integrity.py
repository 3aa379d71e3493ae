"""Proof that a saved step is whole: the hash of every file, written after all of them, read before any is trusted.

Orbax restores flipped bits without a word. So a step counts as saved only once `integrity.json` lies beside its files;
it also says which job and generation wrote it, and from which data. All hosts share the hashing.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from trainingjob_api.base import Open
from trainingjob_trainer.files import write_whole
from trainingjob_trainer.history import Record

FILE = "integrity.json"


class Fingerprint(Open):
    """Size in bytes and SHA-256 of a file."""

    size: Annotated[int, Field(ge=0)]
    sha256: str


class Integrity(Record):
    """What `integrity.json` says: who saved which step, hashes of the data's rows and of the state's shapes, the files.

    File names are relative to the step's folder. `evaluations` are the losses on held-out texts that were measured
    after this very step, by their names.
    """

    evaluations: dict[str, float] = Field(default={})
    files: dict[str, Fingerprint]


def read_integrity(folder: Path) -> Integrity | None:  # None: the step was never committed
    """Return what a step's folder says about itself.

    Raises:
        ValueError: the record is there and makes no sense.
    """
    try:
        return Integrity.model_validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ValueError(f"{FILE} cannot be read: {error.errors()[0]['msg']}") from error


def write_integrity(folder: Path, integrity: Integrity) -> None:
    """Write the record; from now on the step is committed."""
    write_whole(folder / FILE, integrity.model_dump_json(indent=1, exclude_defaults=True).encode())


def list_files(folder: Path) -> list[str]:
    """Return all files of a step but the record, ordered by name."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).as_posix() != FILE
    )


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, Fingerprint]:
    """Return the fingerprints of files."""
    return {name: _hash(folder / name) for name in names}


def find_damage(folder: Path, wanted: Mapping[str, Fingerprint]) -> str:
    """Return what is wrong with files that should be as wanted; empty: nothing."""
    for name, fingerprint in wanted.items():
        try:
            seen = _hash(folder / name)
        except FileNotFoundError:
            return f"{name} is missing"
        if seen.size != fingerprint.size:
            return f"{name} has {seen.size} bytes instead of {fingerprint.size}"
        if seen.sha256 != fingerprint.sha256:
            return f"{name} has changed since it was saved"
    return ""


def share[T](items: list[T], process: int, num_processes: int) -> list[T]:
    """Return the part of a list that a process takes care of."""
    return items[process::num_processes]


def dump_fingerprints(fingerprints: Mapping[str, Fingerprint]) -> str:
    """Return fingerprints as text for another process."""
    return json.dumps({name: [fingerprint.size, fingerprint.sha256] for name, fingerprint in fingerprints.items()})


def merge_fingerprints(texts: Iterable[str]) -> dict[str, Fingerprint]:
    """Return the fingerprints that several processes dumped."""
    merged = {name: pair for text in texts for name, pair in json.loads(text).items()}
    return {name: Fingerprint(size=merged[name][0], sha256=merged[name][1]) for name in sorted(merged)}


def _hash(path: Path) -> Fingerprint:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Fingerprint(size=file.tell(), sha256=digest.hexdigest())
