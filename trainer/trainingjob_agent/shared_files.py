"""Files on a file system that several hosts share: atomic writes, and reads that do not trust the writer.

A foreign file is any file in a place that others can write: the checkpoint folder, the backup folder, the folder of
another job. It may be a link to an endless device, a pipe without a writer, larger than memory, or JSON that crashes a
parser. Reading such a file raises `UntrustedFileError`, which is a `ValueError`. Storage that does not answer raises
`OSError`, as for any file.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
APPENDED = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
POD_FOLDERS = ("/proc", "/sys", "/dev", "/etc/trainingjob", "/run/secrets", "/var/run/secrets")
"""Folders of the pod with its variables, credentials and devices. No volume of a job is mounted there."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a folder whose files only this job writes
NUMBER_PATTERN = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
MAX_JSON_BYTES = 64 << 20
"""Maximum bytes of a JSON record: enough for the names and hashes of half a million files."""


class UntrustedFileError(ValueError):
    """A file is not in the format of this project; the message names the problem."""


def parse_number(text: str) -> int | None:  # None: not a number in the format of this project's file names
    """Return a non-negative integer that is written in ASCII digits, without sign or leading zeros."""
    return int(text) if NUMBER_PATTERN.fullmatch(text) else None


def open_untrusted(path: Path) -> FileIO:
    """Open a foreign file for reading without blocking, whatever its type.

    Raises:
        UntrustedFileError: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    return _open(path.name, str(path), None)


def open_linked(path: Path) -> BinaryIO:
    """Open a foreign file for reading, also through links, unless a link leads to a file of the pod.

    A writer of a volume could otherwise make a job copy its tokens and variables to a folder that others read.

    Raises:
        UntrustedFileError: the path is not a regular file, or a link leads to a folder of `POD_FOLDERS`.
        OSError: the file cannot be opened.
    """
    file: BinaryIO = BufferedReader(FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb"))
    try:
        real = _find_opened(file, path)
        if _is_of_pod(real) and not _is_of_pod(os.path.abspath(path)):  # noqa: PTH100  # links are not followed
            raise UntrustedFileError(f"is a link to {real}, which belongs to the pod")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UntrustedFileError("is not a regular file")
    except BaseException:
        file.close()
        raise
    return file


def _find_opened(file: BinaryIO, path: Path) -> str:
    """Return the path of an open file without links. Links of the path itself may have changed meanwhile."""
    try:
        return os.readlink(f"/proc/self/fd/{file.fileno()}")  # noqa: PTH115  # not a path of a file system
    except OSError:  # another system than Linux, where pods do not run
        return os.path.realpath(path)


def _is_of_pod(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in POD_FOLDERS) and not path.startswith(SHARED_MEMORY)


def open_appending(path: Path) -> FileIO:
    """Open a file for appending without blocking and without following a link; create it if it is missing.

    Raises:
        UntrustedFileError: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path.name, str(path), None)
    return FileIO(_open_regular(path.name, str(path), None, APPENDED), "ab+")


def split_name(name: str) -> list[str]:
    """Return the parts of a file's name below a folder.

    Raises:
        UntrustedFileError: the name leads out of the folder, or is not printable.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part or not part.isprintable() for part in parts):
        raise UntrustedFileError(f"{name[:200]!r} is not the name of a file below the folder")
    return parts


def open_untrusted_below(folder: Path, name: str) -> FileIO:
    """Open a foreign file by its name below a folder, without following links.

    Raises:
        UntrustedFileError: the name leads out of the folder, through a link, or to something other than a regular file.
        OSError: the file cannot be opened.
    """
    parts = split_name(name)
    at = os.open(folder, DIRECTORY_FLAGS)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, DIRECTORY_FLAGS, dir_fd=at)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise UntrustedFileError(f"{name} leads through {part}, which is not a folder") from error
                raise
            os.close(at)
            at = below
        return _open(name, parts[-1], at)
    finally:
        os.close(at)


def _open(name: str, path: str, at: int | None) -> FileIO:  # None: `path` is not relative to an open folder
    _check_regular(name, path, at)
    return FileIO(_open_regular(name, path, at, FILE_FLAGS), "rb")


def _check_regular(name: str, path: str, at: int | None) -> None:
    """Check the type of a file before it is opened: opening a device may have an effect."""
    if not stat.S_ISREG(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode):
        raise UntrustedFileError(f"{name} is not a regular file")


def _open_regular(name: str, path: str, at: int | None, flags: int) -> int:
    problem = f"{name} is not a regular file"
    try:
        file = os.open(path, flags, 0o666, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link or a socket has replaced it since the check
            raise UntrustedFileError(problem) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UntrustedFileError(problem)
    return file


def read_untrusted(path: Path, max_bytes: int) -> bytes:
    """Return the content of a foreign file of at most `max_bytes` bytes.

    Raises:
        UntrustedFileError: the path is not a regular file, or the file is larger.
        OSError: the file cannot be read.
    """
    parts = []
    left = max_bytes + 1
    with open_untrusted(path) as file:
        while left > 0 and (part := file.read(min(left, 1 << 22))):
            parts.append(part)
            left -= len(part)
    if left == 0:
        raise UntrustedFileError(f"{path.name} has more than {max_bytes} bytes")
    return b"".join(parts)


def read_untrusted_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the parsed content of a foreign JSON file.

    Raises:
        UntrustedFileError: the path is not a regular file, or the file is too large or not valid JSON.
        OSError: the file cannot be read.
    """
    return parse_untrusted_json(path.name, read_untrusted(path, max_bytes))


def parse_untrusted_json(name: str, content: bytes) -> Any:
    """Return the parsed content of a foreign JSON file; `name` is the file in messages.

    Raises:
        UntrustedFileError: the content is not valid JSON, or nested too deeply.
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise UntrustedFileError(f"{name} is nested too deeply") from error
    except ValueError as error:
        raise UntrustedFileError(f"{name} is no JSON: {error}") from error


def write_chunks_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file atomically and durably: a reader sees all of it or nothing, and it survives a crash.

    Raises:
        OSError: the file cannot be written.
        Exception: any error of `chunks`. The file then keeps its old content.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # it may be a link to a file that must not be overwritten
    try:
        with temporary.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_record(file: FileIO, record: bytes) -> None:
    """Append a record to an open file, all of it or nothing.

    Raises:
        OSError: the record cannot be written.
    """
    end = os.fstat(file.fileno()).st_size
    try:
        if file.write(record) != len(record):  # the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise
