"""What `BucketStore` needs of a bucket: the requests that every object store with preconditions has."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

PART_BYTES = 8 << 20
"""Size in bytes of the ranges and parts in which large objects are read and written."""
PARALLEL_PARTS = 4
"""Requests in flight for one object: a single connection is slower than the store."""
NONCE_KEY = "trainingjob-nonce"
"""Key of an object's metadata that identifies the write. A write finds its own object by it if its answer was lost."""


class ObjectInfo(NamedTuple):
    """Size of an object in bytes, the nonce of the write that created it, and its version.

    The nonce is empty if another program wrote the object.
    """

    size: int
    nonce: str
    version: str = ""


class ListedObject(NamedTuple):
    """An object of a list: its full name, its size in bytes, and its version."""

    name: str
    size: int
    version: str


class Piece(NamedTuple):
    """A range of an object, the size of the object in bytes, and its version."""

    content: bytes
    total: int
    version: str


class Page(NamedTuple):
    """A part of a list: objects, and beginnings of names up to the next slash."""

    objects: list[ListedObject]
    prefixes: list[str]
    token: str
    """Where the next page begins; empty: this is the last page."""


class PreconditionError(OSError):
    """The object exists although it should not, or has another version. Its errno is EEXIST."""


class Bucket(Protocol):
    """A bucket of an object store. Keys are full names of objects.

    Every method repeats its requests, and raises OSError with an errno: ENOENT for a missing object or bucket, EACCES,
    EAGAIN and ETIMEDOUT after the budget, EIO for answers that are not those of an object store.
    """

    def list_page(self, prefix: str, delimiter: str, token: str) -> Page:
        """Return a page of the objects whose names begin with a prefix. An empty delimiter lists all below it."""
        ...

    def describe(self, key: str) -> ObjectInfo:
        """Return size, nonce and version of an object."""
        ...

    def read(self, key: str, start: int, stop: int, version: str = "") -> Piece:
        """Return the bytes from `start` to before `stop`, fewer if the object ends there.

        Raises:
            PreconditionError: the object has another version than the given one.
        """
        ...

    def put(self, key: str, content: bytes, nonce: str, *, is_exclusive: bool = False) -> None:
        """Write an object with one request.

        Raises:
            PreconditionError: the object exists, and `is_exclusive` is set. It may be from an earlier attempt.
        """
        ...

    def put_parts(self, key: str, parts: Iterator[bytes], nonce: str) -> None:
        """Write an object of several parts of 5 MiB or more, except the last. It becomes visible as a whole."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error."""
        ...
