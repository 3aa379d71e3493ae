"""Files on a file system that several hosts share: written whole or not at all, read without trust in who wrote them.

A foreign file is any that lies where others may write: below the checkpoint folder, the backup folder, the folder of
another job. It may be a link to a device that never ends, a pipe without a writer, larger than any memory, or JSON that
no parser survives. Such a file is refused with a `ForeignFileError`, which is a `ValueError`. Storage that does not
answer is an `OSError`, as with any file.
"""

import contextlib
import errno
import json
import os
import re
import stat
from io import FileIO
from pathlib import Path
from typing import Any

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
LARGEST_JSON = 64 << 20
"""Bytes of a record at most: enough for the names and hashes of half a million files."""


class ForeignFileError(ValueError):
    """A file is not what this project writes; the text says what is wrong with it."""


def parse_number(text: str) -> int | None:  # None: it is no number as this project writes them in names
    """Return a whole number from zero on: ASCII digits, no sign, no zeros before it."""
    return int(text) if NUMBER.fullmatch(text) else None


def open_foreign(path: Path) -> FileIO:
    """Open a foreign file for reading, at once, whatever it is.

    Raises:
        ForeignFileError: it is no regular file.
        OSError: it cannot be opened.
    """
    return _open(path.name, str(path), None)


def open_below(folder: Path, name: str) -> FileIO:
    """Open a foreign file by its name below a folder, and follow no link on the way.

    Raises:
        ForeignFileError: the name leads out of the folder, or through a link, or to no regular file.
        OSError: it cannot be opened.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part or not part.isprintable() for part in parts):
        raise ForeignFileError(f"{name[:200]!r} is not the name of a file below the folder")
    at = os.open(folder, DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, DIRECTORY, dir_fd=at)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise ForeignFileError(f"{name} leads through {part}, which is not a folder") from error
                raise
            os.close(at)
            at = below
        return _open(name, parts[-1], at)
    finally:
        os.close(at)


def _open(shown: str, path: str, at: int | None) -> FileIO:  # None: `path` is relative to no open folder
    problem = f"{shown} is not a regular file"
    if not stat.S_ISREG(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode):
        raise ForeignFileError(problem)
    try:
        file = os.open(path, FILE, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # it has become a link or a socket since
            raise ForeignFileError(problem) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ForeignFileError(problem)
    return FileIO(file, "rb")


def read_foreign(path: Path, largest: int) -> bytes:
    """Return what is in a foreign file of at most so many bytes.

    Raises:
        ForeignFileError: it is no regular file, or larger.
        OSError: it cannot be read.
    """
    parts = []
    left = largest + 1
    with open_foreign(path) as file:
        while left > 0 and (part := file.read(min(left, 1 << 22))):
            parts.append(part)
            left -= len(part)
    if left == 0:
        raise ForeignFileError(f"{path.name} has more than {largest} bytes")
    return b"".join(parts)


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """Return what a foreign JSON file says.

    Raises:
        ForeignFileError: it is no regular file, too large, or no JSON that can be parsed.
        OSError: it cannot be read.
    """
    content = read_foreign(path, largest)
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ForeignFileError(f"{path.name} is nested too deeply") from error
    except ValueError as error:
        raise ForeignFileError(f"{path.name} is no JSON: {error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it, and so that it survives a crash.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # it may be a link to what must not be written
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def append_whole(file: FileIO, record: bytes) -> None:
    """Append a record to an open file, all of it or none of it.

    Raises:
        OSError: it cannot be written.
    """
    end = os.fstat(file.fileno()).st_size
    try:
        if file.write(record) != len(record):  # what was left of the disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise
