"""A store on a file system that all hosts mount, such as NFS, Filestore, Lustre or a local disk.

Object stores have no counterpart for three things, so this module hides them: folders, which it creates with the first
file; the rename that replaces a file at once; and the cached listings of NFS clients.
"""

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from trainingjob_agent.shared_files import (
    DIRECTORY_FLAGS,
    UntrustedFileError,
    append_record,
    open_appending,
    open_untrusted_below,
    split_name,
    write_chunks_atomically,
)
from trainingjob_trainer.store.port import Entry

CHUNK_BYTES = 1 << 22
MAX_READ_BYTES = 1 << 30
"""Linux reads at most 2 GiB with one call."""


class PosixStore:
    """The files below a folder. The folder itself may be a link; below it, links are not followed."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._root = root

    def locate(self, name: str) -> str:
        """Return the absolute path of a file or folder."""
        return str(self._path(name))

    def list_folder(self, folder: str = "", *, is_current: bool = False) -> list[Entry]:
        """Return the entries directly below a folder; none if it does not exist."""
        if is_current:
            self._refresh_listing(folder)
        try:
            number = os.open(self._path(folder), DIRECTORY_FLAGS if folder else os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                message = f"{folder or self.root} must be a folder itself, not a link or a file"
                raise NotADirectoryError(errno.ENOTDIR, message) from error
            raise
        try:
            with os.scandir(number) as entries:
                return sorted(Entry(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        finally:
            os.close(number)

    def list_files(self, folder: str) -> list[str]:
        """Return the names of all files below a folder."""
        return sorted(_walk(self._path(folder), ""))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a file."""
        content = b"".join(self.read_chunks(name, max_bytes))
        if len(content) > max_bytes:
            raise UntrustedFileError(f"{name} has more than {max_bytes} bytes")
        return content

    def read_chunks(self, name: str, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the content of a file in chunks."""
        left = None if max_bytes is None else max_bytes + 1
        with self._open(name) as file:
            while part := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
                yield part
                left = None if left is None else left - len(part)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file."""
        parts = []
        with self._open(name) as file:
            while start < stop and (part := os.pread(file.fileno(), min(stop - start, MAX_READ_BYTES), start)):
                parts.append(part)
                start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open_local(self, name: str) -> FileIO:
        """Return the file itself."""
        return self._open(name)

    def open_log(self, name: str) -> "FileLog":
        """Open a file for appending."""
        path = self._path(name)
        _make_parents(path)
        return FileLog(open_appending(path))

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a temporary file beside the final one, and rename it."""
        path = self._path(name)
        _make_parents(path)
        write_chunks_atomically(path, chunks)

    def create_exclusive(self, name: str, content: bytes) -> None:
        """Create a file with O_EXCL, which NFS supports too."""
        path = self._path(name)
        _make_parents(path)
        with path.open("xb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # it has other files, or another host has removed it
                    path.parent.rmdir()
                raise

    def delete(self, name: str) -> None:
        """Delete a file or a link."""
        with suppress(FileNotFoundError):
            self._path(name).unlink()

    def delete_tree(self, folder: str) -> None:
        """Delete a folder with all that it contains."""
        shutil.rmtree(self._path(folder), onexc=_raise_unless_missing)

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*split_name(name)) if name else self._root

    def _open(self, name: str) -> FileIO:
        return open_untrusted_below(self._root.resolve(), name)

    def _refresh_listing(self, folder: str) -> None:
        """Invalidate the cached listing of a folder by creating a file: on NFS the listing may be a minute old."""
        path = self._path(folder)
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".look.{os.uname().nodename}.{os.getpid()}.{threading.get_native_id()}"
        probe.unlink(missing_ok=True)  # it may be a link
        probe.touch()
        probe.unlink()


class FileLog:
    """A file that is open for appending."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def size(self) -> int:
        """Return the size of the file."""
        return os.fstat(self._file.fileno()).st_size

    def read(self, start: int, stop: int) -> bytes:
        """Return a part of the file."""
        return os.pread(self._file.fileno(), stop - start, start)

    def append(self, record: bytes) -> None:
        """Append a record, and cut what a full disk took of it."""
        append_record(self._file, record)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._file.truncate(size)

    def flush(self) -> None:
        """Do nothing: records are in the file."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
            elif stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                yield prefix + entry.name
            else:
                raise UntrustedFileError(f"{prefix}{entry.name} is neither a file nor a folder")


def _make_parents(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # callers take FileExistsError as: the object itself exists
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error


def _raise_unless_missing(_act: object, _path: str, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
