"""The files of a source on this host. `readers` turns a file into documents.

Each error names the field, the file and the position in it: a job that cannot read its data fails at once.
"""

import dataclasses
import json
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trainingjob_api.data_report import MAX_EXAMPLE, Skipped, SkipReason
from trainingjob_api.formats import (
    FORMATS,
    FormatName,
    advise_format,
    find_compression,
    find_content_name,
    find_unsupported,
)
from trainingjob_api.globs import find_pattern_problem
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import SKIP, TextSource
from trainingjob_trainer.data.sources.compression import InvalidCompressionError, decompress
from trainingjob_trainer.data.sources.file_chunks import read_all, read_lines_of
from trainingjob_trainer.data.sources.file_formats import MAX_POINTER, describe_pointer_file
from trainingjob_trainer.data.sources.file_search import FileSearch, FoundEntry
from trainingjob_trainer.runtime.errors import TrainingError, shorten

STANDARD_LIBRARY = "python:"
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

    `real` is its path without links.
    """

    field: str
    source: TextSource
    name: str
    path: Path
    real: str = ""
    span: range | None = None
    """Bytes of the file in which the records begin that are read. None: the whole file is read."""
    bad_records: BadRecords = dataclasses.field(default_factory=BadRecords, compare=False)

    def read_chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks, decompressed if the name has the suffix of a compression. A span: its lines.

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
                raise self.error(f"cannot be read: {error.strerror}. Check its permissions.") from error
            except InvalidCompressionError as error:
                raise self.error(f"{error}, or leave it out with `exclude`.") from error

    def open(self) -> BinaryIO:
        """Return the open file.

        Raises:
            TrainingError: the file cannot be read, or stands for one that was not fetched.
        """
        try:
            file = self.path.open("rb")
            head = file.read(MAX_POINTER + 1)
            file.seek(0)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}. Check its permissions.") from error
        if what := describe_pointer_file(head):
            file.close()
            raise self.error(f"is {what}.")
        return file

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

    def error(self, words: str, *, field: str = "", fatal: bool = True) -> TrainingError:
        """Return an error about the file; `words` follow its path.

        `field` is the field of the source to change. Empty: the one that decides where its files are.
        """
        path = printable(str(self.path))
        at = f"{self.field}.{field or self.source.location_field}"
        return TrainingError(FailureReason.DATA, f"{path} {words}", path=at, value=path, fatal=fatal)


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source, ordered by name, and those that were skipped."""

    files: list[SourceFile]
    skipped: list[Skipped] = field(default_factory=list)
    unused: str = ""
    """Fields of the source that have no effect. Empty: all have one."""


def find_files(source: TextSource, field: str) -> SourceFiles:
    """Return the files of a source. A file with two names is read once.

    Raises:
        TrainingError: the path does not exist, cannot be searched, or no file matches.
    """
    if not FORMATS[source.format].has_files:
        name = f"{source.format} {source.name}"
        return SourceFiles([SourceFile(field, source, source.format, Path(name), real=name)])
    path, at = source.path or "", f"{field}.{source.location_field}"
    root = resolve_path(path)
    try:
        if not root.exists():
            raise TrainingError(
                FailureReason.DATA,
                f"{root} is not there on this host. Mount the volume that holds it with spec.runtime.volumes, or "
                "correct the path.",
                path=at,
                value=path,
            )
        if root.is_file():
            given = [name for name in ("pattern", "exclude") if name in source.model_fields_set]
            return SourceFiles(
                [SourceFile(field, source, root.name, root, str(root.resolve()))], unused=", ".join(given)
            )
        search = FileSearch(source.glob, source.exclude, is_standard=path.startswith(STANDARD_LIBRARY))
        entries = list(search.walk(root))
    except OSError as error:
        where = printable(str(error.filename or root))
        raise TrainingError(
            FailureReason.DATA,
            f"{where} cannot be searched: {error.strerror}. Check its permissions, or leave it out with `exclude`.",
            path=at,
            value=path,
        ) from error
    _reject_broken_links(source, field, entries, search)
    read, skipped = _deduplicate(entries)
    if not read:
        raise _no_files_error(source, field, root, entries)
    files = [SourceFile(field, source, entry.name, entry.path, entry.real) for entry in read]
    return SourceFiles(files, count_skipped(skipped))


def resolve_path(path: str) -> Path:
    """Return the path of a source on this host."""
    if path.startswith(STANDARD_LIBRARY):
        return Path(sysconfig.get_path("stdlib")) / path.removeprefix(STANDARD_LIBRARY)
    return Path(path)


def printable(text: str) -> str:
    """Return a path as valid Unicode without control characters."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(one if one.isprintable() else "?" for one in whole)


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


def _deduplicate(entries: Iterable[FoundEntry]) -> tuple[list[FoundEntry], list[tuple[SkipReason, str]]]:
    """Return the entries to read, ordered by name, and the rest. Of two names of a file, one without links is kept."""
    skipped = [(entry.reason, entry.name) for entry in entries if entry.reason is not None]
    taken: dict[str, FoundEntry] = {}
    wanted = sorted((one for one in entries if one.reason is None), key=lambda one: (one.is_linked, one.names))
    again = [entry for entry in wanted if taken.setdefault(entry.real, entry) is not entry]
    skipped += [(SkipReason.DUPLICATE, entry.name) for entry in again]
    return sorted(taken.values(), key=lambda entry: entry.names), skipped


def _reject_broken_links(source: TextSource, field: str, entries: Iterable[FoundEntry], search: FileSearch) -> None:
    """Raise if the pattern matches a broken link: its text would be missing."""
    for entry in entries:
        if entry.reason is SkipReason.BROKEN_LINK and search.is_match(entry.name):
            is_annex = "/annex/objects/" in entry.real
            way_out = "Run `git annex get`" if is_annex else "Mount its target"
            path, real = printable(str(entry.path)), printable(entry.real)
            raise TrainingError(
                FailureReason.DATA,
                f"{path} is a link to {real}, which does not exist on this host. {way_out}, or leave it out with "
                "`exclude`.",
                path=f"{field}.{source.location_field}",
                value=source.path,
            )


def _no_files_error(source: TextSource, field: str, root: Path, entries: list[FoundEntry]) -> TrainingError:
    """Return the error of a source without files, which lists what is there instead."""
    without = f" without {', '.join(source.exclude)}" if source.exclude else ""
    message = f"no file below {printable(str(root))} matches `{source.glob}`{without}. "
    others = [entry.name for entry in entries if entry.reason is SkipReason.OTHER_NAME]
    rest = count_skipped((one.reason, one.name) for one in entries if one.reason)
    there = [_count_and_names(others)] if others else []
    there += [
        f"{one.count} {SKIP_DESCRIPTIONS[SkipReason(one.reason)]} ({one.example})"
        for one in rest
        if one.reason in SKIP_DESCRIPTIONS
    ]
    message += f"It has {'; '.join(there)}." if there else "It is empty."
    suffixes = Counter(_suggested_suffix(name) for name in others if _is_suggested(name, source.format))
    if suffixes:
        nearest = f"**/*{suffixes.most_common(1)[0][0]}"
        message += f" Nearest legal value: {json.dumps(nearest)}."
    elif kind := next(filter(None, (find_unsupported(name, source.format) for name in others)), ""):
        remedy = advise_format(kind, "convert them to UTF-8 text")
        message += f" Files of the format {kind} must not be read with `format: {source.format}`: {remedy}."
    else:
        message += " Correct the pattern or the path."
    return TrainingError(FailureReason.DATA, message, path=f"{field}.pattern", value=source.glob)


SKIP_DESCRIPTIONS = {
    SkipReason.HIDDEN: "hidden",
    SkipReason.EXCLUDED: "excluded",
    SkipReason.NOT_SEARCHED: "in folders that the pattern does not search",
    SkipReason.BROKEN_LINK: "links whose target does not exist",
    SkipReason.NOT_A_FILE: "sockets, pipes or devices",
    SkipReason.INSTALLED: "folders of installed packages",
}
"""Reasons of skipped files, as text after a count."""


def _count_and_names(names: list[str]) -> str:
    """Return the number of files, and the names of the first."""
    some = ", ".join(printable(name)[:MAX_EXAMPLE] for name in names[:MAX_NAMED])
    more = ", ..." if len(names) > MAX_NAMED else ""
    return f"{plural(len(names), 'file')}: {some}{more}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `3,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _suggested_suffix(name: str) -> str:
    """Return the suffix of a file name, with that of its content if it is compressed: `.txt.gz`."""
    content = find_content_name(name)
    return f"{Path(content).suffix}{name[len(content) :]}"


def _is_suggested(name: str, format_name: FormatName) -> bool:
    """Return whether a pattern with a file's suffix is worth suggesting."""
    suffix = _suggested_suffix(name)
    return (
        bool(suffix)
        and suffix.isascii()
        and find_pattern_problem(f"*{suffix}") is None
        and not find_unsupported(name, format_name)
    )
