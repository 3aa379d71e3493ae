"""A store of objects in memory, as strict as a bucket: no folders, no rename, nothing but whole objects.

It shows that the rules above a store need nothing else. It is no product: processes of a world do not share it.
"""

import errno
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from trainingjob_agent.shared_files import split_name
from trainingjob_trainer.store.port import Entry


class ObjectStore:
    """Objects by name."""

    def __init__(self, root: str = "mem://bucket") -> None:
        self.root = root
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def locate(self, name: str) -> str:
        return f"{self.root}/{name}"

    def list_folder(self, folder: str = "", *, is_current: bool = False) -> list[Entry]:
        if folder in self.objects:
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} must be a folder itself, not a link or a file")
        prefix = f"{folder}/" if folder else ""
        below = [name.removeprefix(prefix) for name in self.objects if name.startswith(prefix)]
        return sorted({Entry(name.split("/")[0], "/" in name) for name in below})

    def list_files(self, folder: str) -> list[str]:
        return sorted(name.removeprefix(f"{folder}/") for name in self.objects if name.startswith(f"{folder}/"))

    def size(self, name: str) -> int:
        return len(self._get(name))

    def read(self, name: str, max_bytes: int) -> bytes:
        content = self._get(name)
        if len(content) > max_bytes:
            raise ValueError(f"{name} has more than {max_bytes} bytes")
        return content

    def read_chunks(self, name: str, max_bytes: int | None = None) -> Iterator[bytes]:
        content = self._get(name)
        if content:
            yield content if max_bytes is None else content[: max_bytes + 1]

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        return self._get(name)[start:stop]

    def open_local(self, name: str) -> FileIO:
        number, path = tempfile.mkstemp()
        os.close(number)
        Path(path).write_bytes(self._get(name))
        file = FileIO(path)
        Path(path).unlink()
        return file

    def open_log(self, name: str) -> "ObjectLog":
        split_name(name)
        self.objects.setdefault(name, b"")
        return ObjectLog(self, name)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        split_name(name)
        self.objects[name] = b"".join(chunks)

    def create_exclusive(self, name: str, content: bytes) -> None:
        split_name(name)
        with self._lock:
            if name in self.objects:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            self.objects[name] = content

    def delete(self, name: str) -> None:
        split_name(name)
        self.objects.pop(name, None)

    def delete_tree(self, folder: str) -> None:
        split_name(folder)
        for name in self.list_files(folder):
            self.delete(f"{folder}/{name}")

    def _get(self, name: str) -> bytes:
        split_name(name)
        if name not in self.objects:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self.objects[name]


class ObjectLog:
    """An object that is replaced with each record."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    def size(self) -> int:
        return self._store.size(self._name)

    def read(self, start: int, stop: int) -> bytes:
        return self._store.objects[self._name][start:stop]

    def append(self, record: bytes) -> None:
        self._store.objects[self._name] += record

    def truncate(self, size: int) -> None:
        self._store.objects[self._name] = self._store.objects[self._name][:size]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
