"""Proof that a saved step is whole: the hash of every file, written after all of them, read before any is trusted.

Orbax restores flipped bits without a word. So a step counts as saved only once `integrity.json` lies beside its files;
it also says which job and generation wrote it, and from which data, and has a hash of all that it says. All hosts share
the hashing.
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

from trainingjob_api.base import Open
from trainingjob_trainer.files import open_below, read_json, write_whole
from trainingjob_trainer.history import Record

LOG = logging.getLogger(__name__)
FILE = "integrity.json"
DIGEST = "sha256"
"""Under which the record has the hash of all else that it says; one of an older trainer has none."""
PATIENCE_SECONDS = 60.0
"""For how long storage that does not let a file be read is asked again."""
PAUSE_SECONDS = 2.0
CHUNK = 1 << 22
RATE = 256 << 20
"""Bytes a second that a host reads at most of what was saved, beside training and its own saves."""


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
        ValueError: the record is there and makes no sense, or is not what was written.
        OSError: it cannot be read.
    """
    try:
        said = read_json(folder / FILE)
        integrity = Integrity.model_validate(said)
        is_as_written = said.pop(DIGEST, None) in (None, _digest(said))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ValueError(f"{FILE} cannot be read: {error.errors(include_input=False)[0]['msg']}") from error
    except RecursionError as error:
        raise ValueError(f"{FILE} cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{FILE} cannot be read: {error}") from error
    if not is_as_written:
        raise ValueError(f"{FILE} has changed since it was saved")
    return integrity


def write_integrity(folder: Path, integrity: Integrity) -> None:
    """Write the record, last of all files of a step.

    Raises:
        OSError: it cannot be written.
    """
    said = integrity.model_dump(mode="json", exclude_defaults=True)
    write_whole(folder / FILE, json.dumps(sign(said), indent=1).encode())


def sign(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the hash of what it says."""
    return {**said, DIGEST: _digest(said)}


def _digest(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def list_files(folder: Path) -> list[str]:
    """Return all files of a step but the record, ordered by name."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).as_posix() != FILE
    )


class Pace:
    """Keeps a reader to so many bytes a second, until somebody waits for it."""

    def __init__(self, rate: int = RATE) -> None:
        self._rate = rate
        self._due = 0.0
        self._hurry = threading.Event()

    def begin(self) -> None:
        """Keep to the rate from now on."""
        self._due = 0.0
        self._hurry.clear()

    def hurry(self) -> None:
        """Read as fast as storage gives, until the next `begin`."""
        self._hurry.set()

    def keep(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Return the same parts, none before its time."""
        begun = time.monotonic()
        for part in parts:
            yield part
            self._due = max(self._due, begun) + len(part) / self._rate
            self._hurry.wait(max(self._due - time.monotonic(), 0.0))
            begun = time.monotonic()


def read_parts(folder: Path, name: str, most: int | None = None) -> Iterator[bytes]:
    """Return what is in a file of a step, in parts; no more than a byte above `most`. None: all of it.

    Raises:
        ValueError: it is no file of a step.
        OSError: it cannot be read.
    """
    with open_below(folder, name) as file:
        yield from _read_parts(file, most)


def _read_parts(file: FileIO, most: int | None) -> Iterator[bytes]:
    left = None if most is None else most + 1
    while part := file.read(CHUNK if left is None else min(CHUNK, left)):
        yield part
        left = None if left is None else left - len(part)


def find_foreign(folder: Path) -> str:
    """Return what lies in a step's folder that is neither a file nor a folder; empty: nothing. No link is followed.

    What restores a step opens what it finds there, listed in the record or not.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if found := find_foreign(Path(entry.path)):
                    return f"{entry.name}/{found}"
            elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                return f"{entry.name} is neither a file nor a folder"
    return ""


def hash_files(folder: Path, names: Iterable[str], pace: Pace | None = None) -> dict[str, Fingerprint]:
    """Return the fingerprints of files. `pace` None: as fast as storage gives them.

    Raises:
        ValueError: one is no file.
        OSError: one cannot be read.
    """
    parts = {name: read_parts(folder, name) for name in names}
    return {name: take_fingerprint(pace.keep(each) if pace else each) for name, each in parts.items()}


def find_damage(folder: Path, wanted: Mapping[str, Fingerprint]) -> str:
    """Return what is wrong with files that should be as wanted; empty: nothing.

    Raises:
        OSError: a file is there and cannot be read.
    """
    for name, fingerprint in wanted.items():
        try:
            with open_below(folder, name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != fingerprint.size:
                    return f"{name} has {size} bytes instead of {fingerprint.size}"
                seen = take_fingerprint(_read_parts(file, fingerprint.size))
        except FileNotFoundError:
            return f"{name} is missing"
        except ValueError as error:
            return str(error)
        if seen.size != fingerprint.size:
            return f"{name} has {seen.size} bytes instead of {fingerprint.size}"
        if seen.sha256 != fingerprint.sha256:
            return f"{name} has changed since it was saved"
    return ""


class Patience:
    """Asks storage again that refuses to let something be read, for so long in all: most of what it has passes."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._deadline: float | None = None  # None: it has refused nothing yet

    def read[T](self, act: Callable[[], T]) -> T:
        """Return what an act returns that reads.

        Raises:
            OSError: it could not for too long, or there is nothing to read.
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
                time.sleep(PAUSE_SECONDS)


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


def take_fingerprint(parts: Iterable[bytes]) -> Fingerprint:
    """Return the fingerprint of a file that is given in parts."""
    size, digest = 0, hashlib.sha256()
    for part in parts:
        size += len(part)
        digest.update(part)
    return Fingerprint(size=size, sha256=digest.hexdigest())
