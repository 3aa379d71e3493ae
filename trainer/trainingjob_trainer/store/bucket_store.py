"""A store in a bucket. Each method is one or a few requests; nothing is renamed, and no folder exists.

An object becomes visible with the last request of its write. A write is identified by a nonce in the object's metadata:
if the answer of an exclusive creation is lost, its repetition finds the own nonce and has succeeded.
"""

import errno
import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator
from io import FileIO
from itertools import chain

from trainingjob_agent.shared_files import UntrustedFileError, split_name
from trainingjob_trainer.store.bucket import PARALLEL_PARTS, PART_BYTES, Bucket, PreconditionError
from trainingjob_trainer.store.parallel_requests import map_in_flight
from trainingjob_trainer.store.port import Entry, has_object

LOG = logging.getLogger(__name__)
PARALLEL_DELETIONS = 8
PARTS_OF_A_SIZE, MAX_DOUBLINGS = 2500, 3
"""Parts until their size doubles, and how often it does: objects of up to 300 GB."""
FLUSH_SECONDS = 10.0
"""Seconds after a record until a log is uploaded: the records that are lost with a host."""
FLUSH_BYTES_PER_SECOND = 1 << 20
"""Rate at which a log is uploaded again as a whole: a long log is uploaded less often."""


class BucketStore:
    """The objects of a bucket below a prefix. `root` is the URI of both, such as `gs://bucket/run`."""

    def __init__(self, root: str, bucket: Bucket) -> None:
        self.root = root.rstrip("/")
        self._bucket = bucket
        path = self.root.partition("://")[2].partition("/")[2]
        self._prefix = f"{path}/" if path else ""

    def locate(self, name: str) -> str:
        """Return the URI of an object or folder."""
        return f"{self.root}/{name}" if name else self.root

    def list_folder(self, folder: str = "", *, is_current: bool = False) -> list[Entry]:
        """Return the entries directly below a folder; none if it does not exist. Lists are always current."""
        prefix = self._folder_prefix(folder)
        found = {Entry(name, is_folder) for name, is_folder in self._list(prefix, "/") if name}
        if not found and folder and has_object(self, folder):
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} must be a folder itself, not a link or a file")
        return sorted(found)

    def list_files(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder."""
        names = sorted(name for name, _ in self._list(self._folder_prefix(folder), "") if name)
        for name in names:
            split_name(name)  # another program may have created names that no store of this project can read
        return names

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        return self._bucket.describe(self._key(name)).size

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of an object."""
        content = b"".join(self.read_chunks(name, max_bytes))
        if len(content) > max_bytes:
            raise UntrustedFileError(f"{name} has more than {max_bytes} bytes")
        return content

    def read_chunks(self, name: str, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the content of an object in parts, of one version of it."""
        return self._read_parts(self._key(name), 0, None if max_bytes is None else max_bytes + 1)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of an object."""
        key = self._key(name)
        return b"".join(self._read_parts(key, start, stop)) if start < stop else b""

    def open_local(self, name: str) -> FileIO:
        """Download an object into a file without a name."""
        number, path = tempfile.mkstemp(prefix="object-")
        file = FileIO(number, "r+b")
        try:
            os.unlink(path)  # noqa: PTH108  # nothing of it remains after `close`
            for part in self.read_chunks(name):
                _write_all(file, part)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def open_log(self, name: str) -> "BucketLog":
        """Open an object for appending; its content is in memory until it is closed."""
        self._key(name)
        return BucketLog(self, name)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object with one request, or in parts if it is large."""
        key, nonce = self._key(name), uuid.uuid4().hex
        parts = _cut(chunks)
        first, second = next(parts, b""), next(parts, None)
        if second is None:
            self._bucket.put(key, first, nonce)
        else:
            self._bucket.put_parts(key, chain((first, second), parts), nonce)

    def create_exclusive(self, name: str, content: bytes) -> None:
        """Create an object with a precondition."""
        key, nonce = self._key(name), uuid.uuid4().hex
        try:
            self._bucket.put(key, content, nonce, is_exclusive=True)
        except PreconditionError as error:
            if not self._is_own(key, nonce):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._bucket.delete(self._key(name))

    def delete_tree(self, folder: str) -> None:
        """Delete all objects below a folder, several at a time."""
        prefix = self._folder_prefix(folder)
        keys = [prefix + name for name, _ in self._list(prefix, "")]
        for _ in map_in_flight(self._bucket.delete, keys, PARALLEL_DELETIONS):
            pass

    def _key(self, name: str) -> str:
        split_name(name)
        return self._prefix + name

    def _folder_prefix(self, folder: str) -> str:
        return f"{self._key(folder)}/" if folder else self._prefix

    def _list(self, prefix: str, delimiter: str) -> Iterator[tuple[str, bool]]:
        """Yield the names below a prefix without it, and whether each is a folder."""
        token = ""
        while True:
            objects, prefixes, token = self._bucket.list_page(prefix, delimiter, token)
            yield from ((item.name.removeprefix(prefix), False) for item in objects)
            yield from ((name.removeprefix(prefix).rstrip("/"), True) for name in prefixes)
            if not token:
                return

    def _is_own(self, key: str, nonce: str) -> bool:
        try:
            return self._bucket.describe(key).nonce == nonce
        except FileNotFoundError:  # it existed, and another host has deleted it
            return False

    def _read_parts(self, key: str, start: int, stop: int | None) -> Iterator[bytes]:  # None: to the end
        """Yield a range of an object in parts, with several requests in flight after the first.

        Raises:
            OSError: another host replaces the object meanwhile.
        """
        end = start + PART_BYTES if stop is None else min(stop, start + PART_BYTES)
        first = self._bucket.read(key, start, end)
        if first.content:
            yield first.content
        last = first.total if stop is None else min(stop, first.total)
        begins = range(start + len(first.content), last, PART_BYTES)

        def read_part(begin: int) -> bytes:
            return self._bucket.read(key, begin, min(begin + PART_BYTES, last), first.version).content

        try:
            yield from map_in_flight(read_part, begins, PARALLEL_PARTS) if begins else ()
        except PreconditionError as error:
            raise OSError(errno.ESTALE, f"{key} was replaced while it was read") from error


class BucketLog:
    """An object that grows in memory, and is uploaded as a whole some seconds after a record and at the end."""

    def __init__(self, store: BucketStore, name: str) -> None:
        self._store = store
        self._name = name
        self._lock = threading.Lock()
        self._upload_lock = threading.Lock()
        self._timer: threading.Timer | None = None  # None: no upload is planned
        self._is_changed = False  # since the newest upload began
        try:
            self._content = bytearray(b"".join(store.read_chunks(name)))
        except FileNotFoundError:
            self._content, self._is_changed = bytearray(), True
            self._upload()

    def size(self) -> int:
        """Return the size in bytes, with the records that are not uploaded yet."""
        return len(self._content)

    def read(self, start: int, stop: int) -> bytes:
        """Return a part of the log."""
        with self._lock:
            return bytes(self._content[start:stop])

    def append(self, record: bytes) -> None:
        """Append a record."""
        with self._lock:
            self._content += record
            self._is_changed = True
            self._schedule()

    def truncate(self, size: int) -> None:
        """Cut the log."""
        with self._lock:
            del self._content[size:]
            self._is_changed = True
            self._schedule()

    def flush(self) -> None:
        """Upload what is left in the background, and not some seconds later."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
                self._start_timer(0.0)

    def close(self) -> None:
        """Upload what is left, after an upload that has begun.

        Raises:
            OSError: the store refuses the write.
        """
        with self._lock:
            timer, self._timer = self._timer, None
        if timer:
            timer.cancel()
        self._upload()

    def _schedule(self) -> None:
        if self._timer is None:
            self._start_timer(FLUSH_SECONDS + len(self._content) / FLUSH_BYTES_PER_SECOND)

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._flush)
        self._timer.daemon = True
        self._timer.start()

    def _flush(self) -> None:
        with self._lock:
            if self._timer is None:  # it is closed
                return
            self._timer = None
        try:
            self._upload()
        except OSError as error:
            LOG.warning("a log cannot be uploaded name=%s error=%s", self._store.locate(self._name), error)
            with self._lock:
                self._schedule()

    def _upload(self) -> None:
        with self._upload_lock:  # an older content must not replace a newer one
            with self._lock:
                if not self._is_changed:
                    return
                content, self._is_changed = bytes(self._content), False
            try:
                self._store.write(self._name, (content,))
            except OSError:
                with self._lock:
                    self._is_changed = True
                raise


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts. S3 allows 10,000 parts, so the last ones of a huge object are larger."""
    buffer, number = bytearray(), 0
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= (size := PART_BYTES << min(number // PARTS_OF_A_SIZE, MAX_DOUBLINGS)):
            yield bytes(buffer[:size])
            del buffer[:size]
            number += 1
    if buffer:
        yield bytes(buffer)


def _write_all(file: FileIO, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]
