"""Search for the files of a source, below a path of this host or in a bucket."""

import json
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from trainingjob_api.base import is_bucket
from trainingjob_api.data_report import MAX_EXAMPLE, SkipReason
from trainingjob_api.formats import FORMATS, FormatName, advise_format, find_content_name, find_unsupported
from trainingjob_api.globs import find_pattern_problem
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import TextSource
from trainingjob_trainer.data.sources.file_search import FileSearch, FoundEntry
from trainingjob_trainer.data.sources.source_files import (
    MAX_NAMED,
    SourceFile,
    SourceFiles,
    count_skipped,
    plural,
    printable,
)
from trainingjob_trainer.runtime.errors import (
    TrainingError,
    describe_refusal,
    is_permanent,
    name_check,
)
from trainingjob_trainer.store.object_file import StoredObject, find_object, list_objects

STANDARD_LIBRARY = "python:"


def find_files(source: TextSource, field: str) -> SourceFiles:
    """Return the files of a source. A file with two names is read once.

    Raises:
        TrainingError: the path does not exist, cannot be searched, or no file matches.
    """
    if not FORMATS[source.format].has_files:
        name = f"{source.format} {source.name}"
        return SourceFiles([SourceFile(field, source, source.format, Path(name), real=name)])
    path, at = source.path or "", f"{field}.{source.location_field}"
    if is_bucket(path):
        return _find_objects(source, field, path.rstrip("/"), is_folder=path.endswith("/"))
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
            return _single_file(SourceFile(field, source, root.name, root, str(root.resolve())))
        search = FileSearch(source.glob, source.exclude, is_standard=path.startswith(STANDARD_LIBRARY))
        entries = list(search.walk(root))
    except OSError as error:
        where = printable(str(error.filename or root))
        raise TrainingError(
            FailureReason.DATA,
            f"{where} cannot be searched: {error.strerror}. Check {name_check(error)}, or leave it out with `exclude`.",
            path=at,
            value=path,
            fatal=is_permanent(error),
        ) from error
    _reject_broken_links(source, field, entries, search)
    read, skipped = _deduplicate(entries)
    if not read:
        raise _no_files_error(source, field, str(root), entries)
    files = [SourceFile(field, source, entry.name, entry.path, entry.real) for entry in read]
    return SourceFiles(files, count_skipped(skipped))


def _find_objects(source: TextSource, field: str, uri: str, *, is_folder: bool) -> SourceFiles:
    """Return the objects of a source, whose path is the URI of an object or of a folder."""
    try:
        single = None if is_folder or uri.count("/") < 3 else _find_single(uri)
        if single:
            name = uri.rpartition("/")[2]
            return _single_file(SourceFile(field, source, name, Path(name), uri, stored=single))
        entries = list(FileSearch(source.glob, source.exclude).walk_objects(uri, list_objects(uri)))
    except OSError as error:
        raise TrainingError(
            FailureReason.DATA,
            describe_refusal(f"{uri} cannot be searched", error),
            path=f"{field}.{source.location_field}",
            value=source.path,
            fatal=is_permanent(error),
        ) from error
    read, skipped = _deduplicate(entries)
    if not read:
        raise _no_files_error(source, field, uri, entries)
    files = [SourceFile(field, source, entry.name, entry.path, entry.real, stored=entry.stored) for entry in read]
    return SourceFiles(files, count_skipped(skipped))


def _single_file(file: SourceFile) -> SourceFiles:
    """Return the file that a path names itself, to which patterns do not apply."""
    given = [name for name in ("pattern", "exclude") if name in file.source.model_fields_set]
    return SourceFiles([file], unused=", ".join(given))


def _find_single(uri: str) -> StoredObject | None:  # None: no object has this name
    try:
        return find_object(uri)
    except FileNotFoundError:
        return None


def resolve_path(path: str) -> Path:
    """Return the path of a source on this host."""
    if path.startswith(STANDARD_LIBRARY):
        return Path(sysconfig.get_path("stdlib")) / path.removeprefix(STANDARD_LIBRARY)
    return Path(path)


def _deduplicate(entries: Iterable[FoundEntry]) -> tuple[list[FoundEntry], list[tuple[SkipReason, str]]]:
    """Return the entries to read, ordered by name, and the rest. Of two names of a file, one without links is kept."""
    skipped = [(entry.reason, entry.name) for entry in entries if entry.reason is not None]
    taken: dict[str, FoundEntry] = {}
    readable = sorted(
        (entry for entry in entries if entry.reason is None), key=lambda entry: (entry.is_linked, entry.names)
    )
    duplicates = [entry for entry in readable if taken.setdefault(entry.real, entry) is not entry]
    skipped += [(SkipReason.DUPLICATE, entry.name) for entry in duplicates]
    return sorted(taken.values(), key=lambda entry: entry.names), skipped


def _reject_broken_links(source: TextSource, field: str, entries: Iterable[FoundEntry], search: FileSearch) -> None:
    """Raise if the pattern matches a broken link: its text would be missing."""
    for entry in entries:
        if entry.reason is SkipReason.BROKEN_LINK and search.is_match(entry.name):
            is_annex = "/annex/objects/" in entry.real
            advice = "Run `git annex get`" if is_annex else "Mount its target"
            path, real = printable(str(entry.path)), printable(entry.real)
            raise TrainingError(
                FailureReason.DATA,
                f"{path} is a link to {real}, which does not exist on this host. {advice}, or leave it out with "
                "`exclude`.",
                path=f"{field}.{source.location_field}",
                value=source.path,
            )


def _no_files_error(source: TextSource, field: str, root: str, entries: list[FoundEntry]) -> TrainingError:
    """Return the error of a source without files, which lists what is there instead."""
    without = f" without {', '.join(source.exclude)}" if source.exclude else ""
    message = f"no file below {printable(root)} matches `{source.glob}`{without}. "
    others = [entry.name for entry in entries if entry.reason is SkipReason.OTHER_NAME]
    rest = count_skipped((entry.reason, entry.name) for entry in entries if entry.reason)
    descriptions = [_count_and_names(others)] if others else []
    descriptions += [
        f"{skip.count} {SKIP_DESCRIPTIONS[SkipReason(skip.reason)]} ({skip.example})"
        for skip in rest
        if skip.reason in SKIP_DESCRIPTIONS
    ]
    message += f"It has {'; '.join(descriptions)}." if descriptions else "It is empty."
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
