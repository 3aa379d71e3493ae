"""Object stores in the libraries that write arrays: paths for Orbax, and key-value stores for TensorStore.

Orbax writes a few small files through `etils.epath`, and the arrays through TensorStore. `epath` itself needs gcsfs and
s3fs for that. Here its paths use the stores of this project, with their retries and credentials. Orbax 0.12.8 also
removes a slash of `s3://` and has no key-value store for it; `array_path` adds both.
"""

import fnmatch
import io
import os
from collections.abc import Iterator
from functools import cache
from typing import Any, Self

from etils import epath
from etils.epath.gpath import PosixGPath  # the class that `epath.Path` returns, imported by name
from orbax.checkpoint._src.path import gcs_utils  # it has no public name
from orbax.checkpoint._src.serialization import tensorstore_utils  # it has no public name

from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store, has_object

MAX_FILE_BYTES = 1 << 30
"""Maximum bytes of a file that Orbax reads as a whole: metadata and shardings."""
SCHEMES = ("gs://", "s3://")


@epath.register_path_cls(SCHEMES)
class StorePath(PosixGPath):  # type: ignore[misc]  # etils has no types
    """A path in a bucket, as far as Orbax uses paths. Folders exist with their first object."""

    @property
    def _store(self) -> Store:
        return open_bucket("/".join(str(self).split("/")[:3]))

    @property
    def _name(self) -> str:
        return "/".join(str(self).split("/")[3:])

    def exists(self) -> bool:
        """Return whether an object has the name, or a name below it."""
        return has_object(self._store, self._name) or self.is_dir()

    def is_dir(self) -> bool:
        """Return whether objects are below the path."""
        try:
            return bool(self._store.list_folder(self._name))
        except NotADirectoryError:
            return False

    def iterdir(self) -> Iterator[Self]:
        """Yield the paths directly below."""
        return (self / entry.name for entry in self._store.list_folder(self._name))

    def glob(self, pattern: str) -> Iterator[Self]:
        """Yield the paths directly below that match a pattern without slashes."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002  # the parameters of pathlib
        """Do nothing: no folder needs to be created."""

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002  # as above
        """Delete an object."""
        self._store.delete(self._name)

    def rmtree(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002  # as above
        """Delete all objects below."""
        self._store.delete_tree(self._name)

    def open(self, mode: str = "r", **_: Any) -> Any:
        """Open an object for reading."""
        if mode not in ("r", "rb"):
            raise io.UnsupportedOperation(f"{self} cannot be opened with mode {mode}")
        content = io.BytesIO(self._store.read(self._name, MAX_FILE_BYTES))
        return content if mode == "rb" else io.TextIOWrapper(content, encoding="utf-8")

    def write_bytes(self, data: bytes) -> int:
        """Write an object, and return its size."""
        self._store.write(self._name, (data,))
        return len(data)

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        """Write an object in UTF-8, and return its number of characters."""
        self.write_bytes(data.encode())
        return len(data)


@cache
def open_bucket(uri: str) -> Store:
    """Return the store of a whole bucket. Its connections and credentials are shared."""
    return open_store(uri)


def kvstore_spec(location: str) -> dict[str, Any]:
    """Return TensorStore's key-value store for a path or URI."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return {"driver": "file", "path": location}
    bucket, _, path = rest.partition("/")
    if scheme == "gs":
        return {"driver": "gcs", "bucket": bucket, "path": path}
    from trainingjob_trainer.store.s3_bucket import find_endpoint  # noqa: PLC0415  # a job with volumes needs no client
    from trainingjob_trainer.store.s3_credentials import find_region  # noqa: PLC0415  # as above

    endpoint = find_endpoint(os.environ)
    place = {"endpoint": endpoint} if endpoint else {}
    return {"driver": "s3", "bucket": bucket, "path": path, "aws_region": find_region(os.environ), **place}


def array_path(location: str) -> epath.Path:
    """Return a path or URI in the form that Orbax takes."""
    if location.startswith("s3://"):
        _support_s3()
    return epath.Path(location)


@cache
def _support_s3() -> None:
    """Let Orbax write and read arrays at `s3://` as it does at `gs://`."""
    normalize: Any = tensorstore_utils._normalize_path  # noqa: SLF001  # no public function builds its specs
    find_gcs: Any = gcs_utils.get_kvstore_for_gcs

    def normalize_path(path: str) -> str:
        text: str = normalize(path)
        return text.replace("s3:/", "s3://") if path.startswith("s3://") else text

    def find_kvstore(path: str) -> Any:
        return kvstore_spec(path) if path.startswith("s3://") else find_gcs(path)

    tensorstore_utils._normalize_path = normalize_path  # noqa: SLF001
    tensorstore_utils._use_gcs_driver = lambda directory: directory.startswith(SCHEMES)  # noqa: SLF001
    gcs_utils.get_kvstore_for_gcs = find_kvstore
