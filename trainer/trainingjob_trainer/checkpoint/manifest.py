"""The integrity manifest of a checkpoint: `integrity.json` with the size and SHA-256 of every file.

Orbax restores flipped bits without an error, so a step counts as saved only once `integrity.json` is beside its files.
The manifest is written after all files and verified before a restore. It also records the job, generation and data of
the checkpoint, and a hash of the manifest itself. All hosts share the hashing.
"""

import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trainingjob_agent.shared_files import MANIFEST_FILE, open_untrusted_below, read_untrusted_json, write_atomically
from trainingjob_api.base import Open
from trainingjob_trainer.snapshots.lineage import StepRecord

LOG = logging.getLogger(__name__)
HASH_KEY = "sha256"
"""Key of the manifest's hash over all other keys. Manifests of older trainers lack it."""
READ_RETRY_SECONDS = 60.0
"""Seconds for which a failing read from storage is retried."""
RETRY_INTERVAL_SECONDS = 2.0
CHUNK_BYTES = 1 << 22
MAX_BYTES_PER_SECOND = 256 << 20
"""Maximum rate, in bytes per second, at which a host hashes a checkpoint beside training and its own saves."""


class FileHash(Open):
    """Size in bytes and SHA-256 of a file."""

    size: Annotated[int, Field(ge=0)]
    sha256: str


class Integrity(StepRecord):
    """Content of `integrity.json`: origin of the step, hashes of data and state shapes, and the file hashes.

    File names are relative to the step folder. `evaluations` are the held-out losses that were measured after this
    step, by evaluation name.
    """

    evaluations: dict[str, float] = Field(default={})
    files: dict[str, FileHash]


def read_integrity(folder: Path) -> Integrity | None:  # None: the step was never committed
    """Return the manifest of a step folder.

    Raises:
        ValueError: the manifest is malformed, or its content does not match its own hash.
        OSError: storage does not let it be read.
    """
    try:
        content = read_untrusted_json(folder / MANIFEST_FILE)
        integrity = Integrity.model_validate(content)
        is_hash_valid = content.pop(HASH_KEY, None) in (None, _hash_content(content))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ValueError(f"{MANIFEST_FILE} cannot be read: {error.errors(include_input=False)[0]['msg']}") from error
    except RecursionError as error:
        raise ValueError(f"{MANIFEST_FILE} cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{MANIFEST_FILE} cannot be read: {error}") from error
    if not is_hash_valid:
        raise ValueError(f"{MANIFEST_FILE} has changed since it was saved")
    return integrity


def write_integrity(folder: Path, integrity: Integrity) -> None:
    """Write the manifest, as the last file of a step.

    Raises:
        OSError: storage refuses the write.
    """
    said = integrity.model_dump(mode="json", exclude_defaults=True)
    write_atomically(folder / MANIFEST_FILE, json.dumps(add_hash(said), indent=1).encode())


def add_hash(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the hash of its content added."""
    return {**said, HASH_KEY: _hash_content(said)}


def _hash_content(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def list_files(folder: Path) -> list[str]:
    """Return all files of a step except the manifest, sorted by name."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).as_posix() != MANIFEST_FILE
    )


class RateLimit:
    """Limits the read rate, until another thread waits for the reader."""

    def __init__(self, rate: int = MAX_BYTES_PER_SECOND) -> None:
        self._rate = rate
        self._due = 0.0
        self._hurry = threading.Event()

    def enable(self) -> None:
        """Apply the rate limit from now on."""
        self._due = 0.0
        self._hurry.clear()

    def lift(self) -> None:
        """Lift the rate limit until the next `begin`."""
        self._hurry.set()

    def throttle(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same chunks, delayed to the rate limit."""
        begun = time.monotonic()
        for part in parts:
            yield part
            self._due = max(self._due, begun) + len(part) / self._rate
            self._hurry.wait(max(self._due - time.monotonic(), 0.0))
            begun = time.monotonic()


def read_chunks(folder: Path, name: str, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file of a step in chunks, up to one byte more than `most`. None: all of it.

    The extra byte shows that a file is longer than expected.

    Raises:
        ValueError: the name is not that of a regular file below the folder.
        OSError: the file cannot be read.
    """
    with open_untrusted_below(folder, name) as file:
        yield from _read_chunks(file, max_bytes)


def _read_chunks(file: FileIO, most: int | None) -> Iterator[bytes]:
    left = None if most is None else most + 1
    while part := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
        yield part
        left = None if left is None else left - len(part)


def find_irregular_entry(folder: Path) -> str:
    """Return an entry of a step folder that is neither a file nor a folder; empty: none. Links are not followed.

    A restore opens every entry of the folder, whether the manifest lists it or not.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if found := find_irregular_entry(Path(entry.path)):
                    return f"{entry.name}/{found}"
            elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                return f"{entry.name} is neither a file nor a folder"
    return ""


def hash_files(folder: Path, names: Iterable[str], pace: RateLimit | None = None) -> dict[str, FileHash]:
    """Return the size and hash of files. `pace` None: without a rate limit.

    Raises:
        ValueError: a name is not that of a regular file.
        OSError: a file cannot be read.
    """
    parts = {name: read_chunks(folder, name) for name in names}
    return {name: hash_chunks(pace.throttle(each) if pace else each) for name, each in parts.items()}


def find_damage(folder: Path, expected: Mapping[str, FileHash]) -> str:
    """Return how files differ from their expected size and hash; empty: they match.

    Raises:
        OSError: a file exists and cannot be read.
    """
    for name, fingerprint in expected.items():
        try:
            with open_untrusted_below(folder, name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != fingerprint.size:
                    return f"{name} has {size} bytes instead of {fingerprint.size}"
                seen = hash_chunks(_read_chunks(file, fingerprint.size))
        except FileNotFoundError:
            return f"{name} is missing"
        except ValueError as error:
            return str(error)
        if seen.size != fingerprint.size:
            return f"{name} has {seen.size} bytes instead of {fingerprint.size}"
        if seen.sha256 != fingerprint.sha256:
            return f"{name} has changed since it was saved"
    return ""


class ReadRetry:
    """Retries failing reads from storage, with one time limit for all of them: most storage errors are transient."""

    def __init__(self, seconds: float = READ_RETRY_SECONDS) -> None:
        self._seconds = seconds
        self._deadline: float | None = None  # None: no read has failed yet

    def read[T](self, act: Callable[[], T]) -> T:
        """Return the result of a read, which is repeated while it fails.

        Raises:
            OSError: the read failed until the time limit, or the file does not exist.
        """
        while True:
            try:
                return act()
            except FileNotFoundError:
                raise
            except OSError as error:
                now = time.monotonic()
                self._deadline = self._deadline or now + self._seconds
                if now >= self._deadline:
                    raise
                LOG.warning("storage refuses to be read, and is asked again error=%s", error)
                time.sleep(RETRY_INTERVAL_SECONDS)


def select_share[T](items: list[T], process: int, num_processes: int) -> list[T]:
    """Return the items of a list that a process handles."""
    return items[process::num_processes]


def dump_file_hashes(fingerprints: Mapping[str, FileHash]) -> str:
    """Return file hashes as text for another process."""
    return json.dumps({name: [fingerprint.size, fingerprint.sha256] for name, fingerprint in fingerprints.items()})


def merge_file_hashes(texts: Iterable[str]) -> dict[str, FileHash]:
    """Return the file hashes that several processes dumped, merged."""
    merged = {name: pair for text in texts for name, pair in json.loads(text).items()}
    return {name: FileHash(size=merged[name][0], sha256=merged[name][1]) for name in sorted(merged)}


def hash_chunks(parts: Iterable[bytes]) -> FileHash:
    """Return the size and hash of a file from its chunks."""
    size, digest = 0, hashlib.sha256()
    for part in parts:
        size += len(part)
        digest.update(part)
    return FileHash(size=size, sha256=digest.hexdigest())
