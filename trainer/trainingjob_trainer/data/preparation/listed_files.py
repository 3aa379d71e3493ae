"""The files of a dataset, in order, and the parts in which they are tokenized.

Files are identified by path, size and modification time, objects of a bucket by URI, size and version, and files of the
hub by repository, commit and size. Their content is read once, when it is tokenized.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.formats import FORMATS, find_compression
from trainingjob_api.spec.data import DEFAULT_FORMAT, Synthetic, TextSource
from trainingjob_trainer.data.sources.source_files import SourceFile, SourceFiles
from trainingjob_trainer.data.sources.source_search import find_files

ID_BYTES = 4
PART_BYTES = 64 << 20
"""Size of the files of a part, unless one file is larger and cannot be divided: a part is lost if its process dies."""

type Sources = Sequence[tuple[str, TextSource]]
"""The sources of a dataset, each with its path in the spec."""


@dataclass(frozen=True)
class ListedFile:
    """A file, as it was when the dataset was listed."""

    file: SourceFile
    size: int
    changed_ns: int
    """Modification time, in nanoseconds since 1970; 0 for objects, which have a version."""

    def check_unchanged(self) -> None:
        """Raise `TrainingError` if the file has changed since it was listed."""
        if self.file.stored:  # every read has asked for this version
            return
        if list_file(self.file) != self:
            problem = "changed while it was read. Do not change the text while a job starts."
            raise self.file.error(problem, fatal=False)


@dataclass(frozen=True)
class Part:
    """A part of a dataset: consecutive files, or a piece of one."""

    files: range
    """The numbers of the files."""
    span: range | None = None
    """Bytes of the only file in which the records of a piece begin. None: the files are whole."""
    is_account: bool = False
    """Whether the part holds hash and counts of a file whose tokens are in the pieces after it."""


@dataclass(frozen=True)
class Manifest:
    """The files of a dataset, and those that were skipped, by source."""

    found: tuple[tuple[TextSource, SourceFiles], ...]
    files: tuple[ListedFile, ...]
    parts: tuple[Part, ...]

    @property
    def has_pieces(self) -> bool:
        """Return whether a file is divided into pieces."""
        return any(part.span for part in self.parts)

    def hash(self, settings: Sequence[object], paths: Mapping[str, str]) -> str:
        """Return the hash of the files, and of the settings that decide their tokens.

        `paths` is as in `plan_dataset`.
        """
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for listed in self.files:
            row = [listed.file.source.name, listed.file.name, *_identify(listed, paths)]
            digest.update(json.dumps([*row, *_list_reader_options(listed.file.source)]).encode())
        return digest.hexdigest()

    def part_size(self, part: int) -> int:
        """Return the bytes of the files of a part."""
        listed_part = self.parts[part]
        if listed_part.is_account:
            return 0
        if listed_part.span:
            return len(listed_part.span)
        return sum(self.files[number].size for number in listed_part.files)


def list_dataset(sources: Sources) -> Manifest:
    """Return the files of a dataset.

    Raises:
        TrainingError: a source has no files, or a file cannot be read.
    """
    found = tuple((source, find_files(source, field)) for field, source in sources)
    files = tuple(list_file(file) for _, source_files in found for file in source_files.files)
    return Manifest(found, files, _divide(files))


def _identify(listed: ListedFile, paths: Mapping[str, str]) -> list[object]:
    """Return what identifies the content of a file: its place, its size and its version."""
    file, hub = listed.file, listed.file.source.hugging_face
    if hub is not None:  # the path and the time are those of a download
        return [hub.repository, listed.size, hub.revision]
    if file.stored is not None:
        return list(file.stored)
    path = file.path
    if file.field in paths:
        path = Path(paths[file.field]) / path.relative_to(file.source.path or "")
    return [str(path), listed.size, listed.changed_ns]


def _list_reader_options(source: TextSource) -> list[object]:
    """Return what decides the documents of a file beside its content; empty: they are its text."""
    options = source.model_dump(include={"format", *FORMATS[source.format].fields}, exclude_none=True)
    return [] if options == {"format": DEFAULT_FORMAT} else [options]


def _divide(files: Sequence[ListedFile]) -> tuple[Part, ...]:
    """Return the parts of a dataset."""
    parts, first, size = list[Part](), 0, 0
    for number, listed in enumerate(files):
        pieces = _divide_file(number, listed)
        if number > first and (pieces or (size and size + listed.size > PART_BYTES)):
            parts.append(Part(range(first, number)))
            first, size = number, 0
        if pieces:
            parts += pieces
            first, size = number + 1, 0
        else:
            size += listed.size
    return (*parts, Part(range(first, len(files)))) if first < len(files) else tuple(parts)


def _divide_file(number: int, listed: ListedFile) -> list[Part]:
    """Return the parts of a large file of lines: its account, then its pieces. Empty: the file is not divided.

    A hash of documents needs them in their order, so one part reads all of them, beside those that tokenize the pieces.
    """
    file, count = listed.file, -(-listed.size // PART_BYTES)
    if count <= 1 or not FORMATS[file.source.format].has_lines or find_compression(file.name):
        return []
    files, step = range(number, number + 1), -(-listed.size // count)
    spans = (range(begin, min(begin + step, listed.size)) for begin in range(0, listed.size, step))
    return [Part(files, is_account=True), *(Part(files, span) for span in spans)]


def list_file(file: SourceFile) -> ListedFile:
    """Return a file as it is now. Random tokens are as they always are.

    Raises:
        TrainingError: the file cannot be read.
    """
    if not FORMATS[file.source.format].has_files:
        options = file.source.synthetic or Synthetic()
        return ListedFile(file, options.tokens * ID_BYTES, changed_ns=0)
    if file.stored is not None:
        return ListedFile(file, file.stored.size, changed_ns=0)
    try:
        status = file.path.stat()
    except OSError as error:
        raise file.read_error(error) from error
    return ListedFile(file, status.st_size, status.st_mtime_ns)
