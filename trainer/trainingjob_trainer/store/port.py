"""What every store guarantees, and nothing that an object store with preconditions lacks.

A store holds objects below one root. An object has a name of parts that slashes separate, such as
`lineage-0/20/integrity.json`. A folder is the common beginning of names, and nothing creates a folder. A folder without
objects counts as missing, although a file system may still list it. There is no rename, no link, no lock and
no time of change.

All methods raise `OSError` with an `errno` if the store does not respond or refuses. A missing object raises
`FileNotFoundError`. A caller may retry every method except `create_exclusive`.

The content of a store is not trusted. `ValueError` means that an entry is not an object in the format of this project:
a link, a device, an object that is too large, or a name that leads out of the root.
"""

from collections.abc import Iterable, Iterator
from io import FileIO
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A name directly below a folder: an object, or a folder with objects below it."""

    name: str
    is_folder: bool
    """Whether it is a folder. On POSIX, false also for links and devices."""


class Log(Protocol):
    """An object that grows by whole records, such as metrics. One process writes it.

    A store without append replaces the object from time to time. The newest records are lost with their host then.
    """

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to before `stop`; fewer if the object ends there."""
        ...

    def append(self, record: bytes) -> None:
        """Append a record, all of it or nothing."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the object to a size in bytes."""
        ...

    def flush(self) -> None:
        """Begin to write what is left, without waiting for it."""
        ...

    def close(self) -> None:
        """Write what is left, and free the resources."""
        ...


class Store(Protocol):
    """The objects below a root."""

    root: str
    """The root as the spec names it: a path or a URI."""

    def locate(self, name: str) -> str:
        """Return the path or URI of an object or folder, for libraries that read and write arrays themselves."""
        ...

    def list_folder(self, folder: str = "", *, is_current: bool = False) -> list[Entry]:
        """Return the entries directly below a folder, sorted by name; none if the folder does not exist.

        With `is_current` the list has every object that any host created before the call. This needs the right to
        write. Without it, the list may be as old as a cache of this host.

        Raises:
            NotADirectoryError: the folder is an object or a link.
        """
        ...

    def list_files(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, relative to the folder and sorted.

        Raises:
            ValueError: an entry is neither an object nor a folder.
        """
        ...

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        ...

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of an object.

        Raises:
            ValueError: the object has more than `max_bytes` bytes.
        """
        ...

    def read_chunks(self, name: str, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the content of an object in chunks, up to one byte more than `max_bytes`. None: all of it.

        The extra byte shows that an object is longer than expected.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to before `stop`; fewer if the object ends there."""
        ...

    def open_local(self, name: str) -> FileIO:
        """Return an object as a file of this host, open for reading, to be mapped into memory.

        A store that is no file system downloads the object first, and nothing of it remains after `close`.
        """
        ...

    def open_log(self, name: str) -> Log:
        """Return an object to append to. It is created if it is missing.

        Raises:
            ValueError: the entry is not an object.
        """
        ...

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object, or replace it. Readers get the old content or the new content, and never a mixture.

        When the method returns, the content survives a crash of this host. If it raises, the old content remains.
        """
        ...

    def create_exclusive(self, name: str, content: bytes) -> None:
        """Create an object that does not exist yet. Of several hosts that call this, exactly one succeeds.

        On POSIX, a reader may see the new object empty or incomplete for a moment.

        Raises:
            FileExistsError: the object exists.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete an object. A missing object is no error."""
        ...

    def delete_tree(self, folder: str) -> None:
        """Delete all objects below a folder, in any order. A missing folder is no error.

        An interruption leaves some of the objects. So a caller first deletes the object that gives the others meaning.
        """
        ...


def has_object(store: Store, name: str) -> bool:
    """Return whether a store has an object.

    Raises:
        ValueError: the entry is not an object.
    """
    try:
        store.size(name)
    except FileNotFoundError:
        return False
    return True
