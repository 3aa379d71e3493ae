"""Objects of a bucket as files for reading: one version of each, of which two ranges at a time are in memory."""

import errno
import io
from collections.abc import Buffer, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, NamedTuple, cast

from trainingjob_trainer.store.bucket import Bucket, PreconditionError
from trainingjob_trainer.store.opening import connect_bucket, split_uri

READ_BYTES = 4 << 20
"""Size in bytes of a range. Programs that read an object from its begin have the next range in flight."""
BUFFER_BYTES = 1 << 16


class StoredObject(NamedTuple):
    """A version of an object: its URI, its size in bytes, and its version."""

    uri: str
    size: int
    version: str


def list_objects(folder: str) -> Iterator[StoredObject]:
    """Yield all objects below the URI of a folder, ordered by name. Empty objects that stand for folders are left out.

    Raises:
        OSError: the bucket is missing, refuses the request, or does not answer.
    """
    scheme, name, key = split_uri(folder.rstrip("/"))
    bucket, prefix, token = connect_bucket(scheme, name), f"{key}/" if key else "", ""
    while True:
        page = bucket.list_page(prefix, "", token)
        for item in page.objects:
            if not item.name.endswith("/"):
                yield StoredObject(f"{scheme}://{name}/{item.name}", item.size, item.version)
        if not (token := page.token):
            return


def find_object(uri: str) -> StoredObject:
    """Return the newest version of an object.

    Raises:
        OSError: the object or the bucket is missing, the bucket refuses the request, or does not answer.
    """
    scheme, name, key = split_uri(uri)
    info = connect_bucket(scheme, name).describe(key)
    return StoredObject(uri, info.size, info.version)


def open_object(stored: StoredObject) -> BinaryIO:
    """Return an object as an open file. It is requested with the first read.

    Reads raise OSError; its errno is ESTALE if the object has another version by now.
    """
    scheme, name, _ = split_uri(stored.uri)
    file = io.BufferedReader(ObjectFile(connect_bucket(scheme, name), stored), BUFFER_BYTES)
    return cast("BinaryIO", file)


class ObjectFile(io.RawIOBase):
    """A version of an object as a file. Two ranges are in memory: the current one, and the next while it is fetched."""

    def __init__(self, bucket: Bucket, stored: StoredObject) -> None:
        self._bucket = bucket
        self._stored = stored
        self._key = split_uri(stored.uri)[2]
        self._place = 0
        self._start = 0
        self._range = b""
        self._pool: ThreadPoolExecutor | None = None  # None: nothing was fetched ahead yet
        self._ahead: tuple[int, Future[bytes]] | None = None  # None: no range is in flight

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._stored.size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def readinto(self, buffer: Buffer, /) -> int:
        """Read some bytes; none at the end.

        Raises:
            OSError: the object was replaced, or the bucket fails.
        """
        target = memoryview(buffer).cast("B")
        content = self._take(len(target))
        target[: len(content)] = content
        self._place += len(content)
        return len(content)

    def close(self) -> None:
        """Close the file. A range in flight is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _take(self, size: int) -> memoryview:
        if self._place >= self._stored.size:
            return memoryview(b"")
        if not self._start <= self._place < self._start + len(self._range):
            self._range, self._start = self._fetch(self._place), self._place
        begin = self._place - self._start
        return memoryview(self._range)[begin : begin + size]

    def _fetch(self, start: int) -> bytes:
        """Return the range that begins somewhere. After the range before it, the next one is fetched too."""
        is_next = 0 < start == self._start + len(self._range)
        ahead, self._ahead = self._ahead, None
        content = ahead[1].result() if ahead and ahead[0] == start else self._read(start)
        after = start + len(content)
        if is_next and after < self._stored.size:
            self._pool = self._pool or ThreadPoolExecutor(1)
            self._ahead = after, self._pool.submit(self._read, after)
        return content

    def _read(self, start: int) -> bytes:
        stored = self._stored
        stop = min(start + READ_BYTES, stored.size)
        try:
            piece = self._bucket.read(self._key, start, stop, stored.version)
        except PreconditionError as error:
            raise _replaced_error(stored) from error
        if piece.version != stored.version or len(piece.content) != stop - start:  # a store without preconditions
            raise _replaced_error(stored)
        return piece.content


def _replaced_error(stored: StoredObject) -> OSError:
    return OSError(errno.ESTALE, f"{stored.uri} was replaced")
