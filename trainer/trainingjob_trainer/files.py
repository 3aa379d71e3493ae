"""Files that appear whole or not at all, on a file system that several hosts share."""

import contextlib
import errno
import os
from io import FileIO
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it, and so that it survives a crash.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
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
