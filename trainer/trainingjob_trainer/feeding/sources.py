"""Text sources: which files a source names on this host, and their text, checked.

Whatever is wrong is told with the field, the file and the place in it: a job that cannot read its data fails at once.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.data import TextSource
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.failures import TrainingError

STANDARD_LIBRARY = "python:"
NOT_STANDARD = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders inside the standard library's own that are not part of it."""


@dataclass(frozen=True)
class Document:
    """A file of a source. `name` is its path inside the source, `field` the source's place in the spec."""

    field: str
    source: str
    name: str
    path: Path

    def read(self) -> bytes:
        """Return the file's bytes, which are UTF-8.

        Raises:
            TrainingError: it cannot be read, or is not UTF-8.
        """
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise TrainingError(
                FailureReason.DATA,
                f"{self.path} cannot be read: {error.strerror}. Check its permissions.",
                path=f"{self.field}.path",
                value=self.path,
            ) from error
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise TrainingError(
                FailureReason.DATA,
                f"{self.path} is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x} "
                f"({error.reason}). Repair the file, or leave it out with `exclude`.",
                path=f"{self.field}.path",
                value=self.path,
            ) from error
        return content


def find_documents(source: TextSource, field: str) -> list[Document]:
    """Return the files of a source, ordered by name.

    Raises:
        TrainingError: the path is not there, cannot be searched, or no file matches.
    """
    root = resolve_path(source.path)
    if not root.exists():
        raise TrainingError(
            FailureReason.DATA,
            f"{root} is not there on this host. Mount the volume that holds it with spec.runtime.volumes, or correct "
            "the path.",
            path=f"{field}.path",
            value=source.path,
        )
    if root.is_file():
        return [Document(field, source.name, root.name, root)]
    try:
        documents = [
            Document(field, source.name, path.relative_to(root).as_posix(), path)
            for path in sorted(_list_files(root, source))
        ]
    except (OSError, ValueError, NotImplementedError) as error:
        raise TrainingError(
            FailureReason.DATA, f"{root} cannot be searched: {error}.", path=f"{field}.path", value=source.path
        ) from error
    if not documents:
        raise TrainingError(
            FailureReason.DATA,
            f"no file below {root} matches `{source.pattern}`"
            + (f" without {list(source.exclude)}." if source.exclude else ".")
            + " Correct the pattern or the path.",
            path=f"{field}.pattern",
            value=source.pattern,
        )
    return documents


def resolve_path(path: str) -> Path:
    """Return where a source's path is on this host."""
    if path.startswith(STANDARD_LIBRARY):
        return Path(sysconfig.get_path("stdlib")) / path.removeprefix(STANDARD_LIBRARY)
    return Path(path)


def _list_files(root: Path, source: TextSource) -> Iterator[Path]:
    excluded = {path for pattern in source.exclude for path in root.glob(pattern)}
    standard = source.path.startswith(STANDARD_LIBRARY)
    for path in root.glob(source.pattern):
        inside = path.relative_to(root)
        if excluded and (path in excluded or any(root / parent in excluded for parent in inside.parents)):
            continue
        if standard and NOT_STANDARD.intersection(inside.parts):
            continue
        if path.is_file():
            yield path
