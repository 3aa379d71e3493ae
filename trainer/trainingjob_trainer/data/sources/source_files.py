"""The files of a source, on this host or in a bucket. `readers` turns a file into documents.

Each error names the field, the file and the position in it: a job that cannot read its data fails at once.
"""

import dataclasses
import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trainingjob_agent.shared_files import UntrustedFileError, open_linked
from trainingjob_api.data_report import MAX_EXAMPLE, Skipped, SkipReason
from trainingjob_api.formats import find_compression
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import SKIP, TextSource
from trainingjob_trainer.data.sources.compression import InvalidCompressionError, decompress
from trainingjob_trainer.data.sources.file_chunks import read_all, read_lines_of
from trainingjob_trainer.data.sources.file_formats import MAX_POINTER, describe_pointer_file
from trainingjob_trainer.runtime.errors import TrainingError, describe_refusal, is_permanent, name_check, shorten
from trainingjob_trainer.store.object_file import StoredObject, open_object

MAX_NAMED = 3
"""Maximum files that a message names."""
MAX_REASON = 250


@dataclass
class BadRecords:
    """Records of a file that have no valid document."""

    count: int = 0
    first: str = ""
    """What is wrong with the first of them."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source. `field` is the path of the source in the spec, `name` the file's path inside the source.

    `real` is its path without links, or the URI of an object.
    """

    field: str
    source: TextSource
    name: str
    path: Path
    real: str = ""
    span: range | None = None
    """Bytes of the file in which the records begin that are read. None: the whole file is read."""
    stored: StoredObject | None = None
    """The object of a bucket. None: the file is at `path` on this host."""
    bad_records: BadRecords = dataclasses.field(default_factory=BadRecords, compare=False)

    def read_chunks(self) -> Generator[bytes]:
        """Yield the content in chunks, decompressed if the name has the suffix of a compression. A span: its lines.

        Close the generator, so that the file is closed where a reader raises.

        Raises:
            TrainingError: the file cannot be read or decompressed, or stands for one that was not fetched.
        """
        compression = find_compression(self.name)
        with self.open() as file:
            try:
                if self.span is not None:
                    yield from read_lines_of(file, self.span)
                else:
                    yield from decompress(file, compression) if compression else read_all(file)
            except OSError as error:
                raise self.read_error(error) from error
            except InvalidCompressionError as error:
                raise self.error(f"{error}, or leave it out with `exclude`.") from error

    def open(self) -> BinaryIO:
        """Return the open file.

        Raises:
            TrainingError: the file cannot be read, or stands for one that was not fetched.
        """
        try:
            file = open_object(self.stored) if self.stored else open_linked(self.path)
            head = file.read(MAX_POINTER + 1)
            file.seek(0)
        except OSError as error:
            raise self.read_error(error) from error
        except UntrustedFileError as error:
            raise self.error(f"{error}. Leave it out with `exclude`.") from error
        if what := describe_pointer_file(head):
            file.close()
            raise self.error(f"is {what}.")
        return file

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Provide a path of the content on this host, for libraries that open files themselves.

        Raises:
            TrainingError: an object cannot be downloaded.
        """
        if self.stored is None:
            self.open().close()
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix="object-") as copy:
            try:
                with open_object(self.stored) as content:
                    shutil.copyfileobj(content, copy)
                copy.flush()
            except OSError as error:
                raise self.read_error(error) from error
            yield Path(copy.name)

    @property
    def skips_bad_records(self) -> bool:
        """Return whether a record without a valid document is left out."""
        return self.source.on_bad_record == SKIP

    def reject_record(self, error: TrainingError) -> None:
        """Count a bad record if the source skips them, otherwise raise its error."""
        if not self.skips_bad_records:
            raise error
        self.bad_records.count += 1
        self.bad_records.first = self.bad_records.first or shorten(str(error), MAX_REASON)

    def error(self, problem: str, *, field: str = "", fatal: bool = True) -> TrainingError:
        """Return an error about the file; `problem` follows its path.

        `field` is the field of the source to change. Empty: the one that decides where its files are.
        """
        path = printable(self.stored.uri if self.stored else str(self.path))
        at = f"{self.field}.{field or self.source.location_field}"
        return TrainingError(FailureReason.DATA, f"{path} {problem}", path=at, value=path, fatal=fatal)

    def read_error(self, error: OSError) -> TrainingError:
        """Return the error of a file that its file system or its bucket does not give."""
        if error.errno == errno.ESTALE:
            return self.error("changed while it was read. Do not change the text while a job starts.", fatal=False)
        if self.stored is None:
            problem = f"cannot be read: {error.strerror}. Check {name_check(error)}."
            return self.error(problem, fatal=is_permanent(error))
        return self.error(describe_refusal("cannot be read", error), fatal=is_permanent(error))


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, ordered by name, and those that were skipped."""

    files: list[SourceFile]
    skipped: list[Skipped] = field(default_factory=list)
    unused: str = ""
    """Fields of the source that have no effect. Empty: all have one."""


def printable(text: str) -> str:
    """Return a path as valid Unicode without control characters."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(character if character.isprintable() else "?" for character in whole)


def count_skipped(skipped: Iterable[tuple[SkipReason, str]]) -> list[Skipped]:
    """Return the number of skipped files and folders for each reason, with the first as an example."""
    counts: Counter[SkipReason] = Counter()
    examples: dict[SkipReason, str] = {}
    for reason, name in skipped:
        counts[reason] += 1
        examples.setdefault(reason, name)
    return [
        Skipped(reason=reason, count=counts[reason], example=printable(examples[reason])[:MAX_EXAMPLE])
        for reason in SkipReason
        if counts[reason]
    ]


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `3,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
