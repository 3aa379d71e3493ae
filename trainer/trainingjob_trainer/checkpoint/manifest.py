"""The integrity manifest of a checkpoint: `integrity.json` with the size and SHA-256 of every file.

Orbax restores flipped bits without an error, so a step counts as saved only once `integrity.json` is beside its files.
The manifest is written after all files and verified before a restore. It also records the job, generation and data of
the checkpoint, and a hash of the manifest itself. All hosts share the hashing.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from trainingjob_agent.checkpoint_layout import FROZEN_FOLDER, MANIFEST_FILE, parse_step_name
from trainingjob_agent.shared_files import MAX_JSON_BYTES, parse_untrusted_json
from trainingjob_api.base import Open
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.snapshots.lineage import StepRecord

LOG = logging.getLogger(__name__)
HASH_KEY = "sha256"
"""Key of the manifest's hash over all other keys. Manifests of older trainers lack it."""
READ_RETRY_SECONDS = 60.0
"""Seconds for which a failing read from storage is retried."""
RETRY_INTERVAL_SECONDS = 2.0
MAX_BYTES_PER_SECOND = 256 << 20
"""Maximum rate, in bytes per second, at which a host hashes a checkpoint beside training and its own saves."""


class FileHash(Open):
    """Size in bytes and SHA-256 of a file."""

    size: Annotated[int, Field(ge=0)]
    sha256: str


class SavedItem(Open):
    """An item of the saved state: the hash of its shapes, and whether a state must have it."""

    shapes: str
    required: bool = True


class SavedLora(Open):
    """Rank and alpha of the adapters in a saved state."""

    rank: int
    alpha: float


def _check_frozen_folder(name: str) -> str:
    parent, _, last = name.rpartition("/")
    step = parse_step_name(last)
    if parent != FROZEN_FOLDER or step is None or step.writer is None:
        raise ValueError(f"{name} is no folder of frozen tensors")
    return name


class SavedFrozen(Open):
    """The reference of a step to the frozen tensors in another folder of the same store.

    `manifest` is the hash of that folder's `integrity.json`. `tensors` are the sorted names of the parameters there.
    """

    folder: Annotated[str, AfterValidator(_check_frozen_folder)]
    manifest: FileHash
    tensors: tuple[str, ...]


class Integrity(StepRecord):
    """Content of `integrity.json`: origin of the step, hashes of data and state shapes, and the file hashes.

    File names are relative to the step folder. `evaluations` are the held-out losses that were measured after this
    step, by evaluation name. `network` is the fingerprint of what the model computes, and `model` is its section of the
    spec. Both are empty if an older trainer saved the step. `lora` is None without adapters, or if an older trainer
    saved the step. `layout` is the version of the state's layout. None: an older trainer saved the step, and its state
    has no named items. `frozen` None: the step has all parameters itself.
    """

    layout: int | None = None
    network: str = ""
    model: dict[str, Any] = Field(default={})
    lora: SavedLora | None = None
    items: dict[str, SavedItem] = Field(default={})
    evaluations: dict[str, float] = Field(default={})
    frozen: SavedFrozen | None = None
    files: dict[str, FileHash]


def read_integrity(folder: StepFolder) -> Integrity | None:  # None: the step was never committed
    """Return the manifest of a step folder.

    Raises:
        ValueError: the manifest is malformed, or its content does not match its own hash.
        OSError: storage does not let it be read.
    """
    name = folder.file(MANIFEST_FILE)
    try:
        content = parse_untrusted_json(name, folder.store.read(name, MAX_JSON_BYTES))
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


def write_integrity(folder: StepFolder, integrity: Integrity) -> None:
    """Write the manifest, as the last file of a step: from then on the step is committed.

    Raises:
        OSError: storage refuses the write.
    """
    folder.store.write(folder.file(MANIFEST_FILE), (dump_integrity(integrity),))


def dump_integrity(integrity: Integrity) -> bytes:
    """Return the content of a manifest's file, the same on all processes."""
    return json.dumps(add_hash(integrity.model_dump(mode="json", exclude_defaults=True)), indent=1).encode()


def add_hash(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the hash of its content added."""
    return {**record, HASH_KEY: _hash_content(record)}


def _hash_content(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def list_files(folder: StepFolder) -> list[str]:
    """Return all files of a step except the manifest, sorted by name.

    Raises:
        ValueError: an entry is neither a file nor a folder. A restore would open it, listed in the manifest or not.
        OSError: the folder cannot be read.
    """
    return [name for name in folder.store.list_files(folder.name) if name != MANIFEST_FILE]


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
        """Lift the rate limit until the next `enable`."""
        self._hurry.set()

    def throttle(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same chunks, delayed to the rate limit."""
        start = time.monotonic()
        for part in parts:
            yield part
            self._due = max(self._due, start) + len(part) / self._rate
            self._hurry.wait(max(self._due - time.monotonic(), 0.0))
            start = time.monotonic()


def hash_files(folder: StepFolder, names: Iterable[str], pace: RateLimit | None = None) -> dict[str, FileHash]:
    """Return the size and hash of files. `pace` None: without a rate limit.

    Raises:
        ValueError: a name is not that of a regular file.
        OSError: a file cannot be read.
    """
    parts = {name: folder.store.read_chunks(folder.file(name)) for name in names}
    return {name: hash_chunks(pace.throttle(each) if pace else each) for name, each in parts.items()}


def find_damage(folder: StepFolder, expected: Mapping[str, FileHash]) -> str:
    """Return how files differ from their expected size and hash; empty: they match.

    Raises:
        OSError: a file exists and cannot be read.
    """
    for name, fingerprint in expected.items():
        try:
            size = folder.store.size(folder.file(name))
            if size != fingerprint.size:
                return f"{name} has {size} bytes instead of {fingerprint.size}"
            seen = hash_chunks(folder.store.read_chunks(folder.file(name), fingerprint.size))
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

    def read[T](self, operation: Callable[[], T]) -> T:
        """Return the result of a read, which is repeated while it fails.

        Raises:
            OSError: the read failed until the time limit, or the file does not exist.
        """
        while True:
            try:
                return operation()
            except FileNotFoundError:
                raise
            except OSError as error:
                now = time.monotonic()
                self._deadline = self._deadline or now + self._seconds
                if now >= self._deadline:
                    raise
                LOG.warning("storage cannot be read, retrying error=%s", error)
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
