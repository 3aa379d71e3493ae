"""File search below a source's path: every entry is read, or skipped with a reason.

Links of file systems are followed. A folder is searched again under another name only if other files can match there.
This rule also ends every cycle.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.data_report import SkipReason
from trainingjob_api.globs import Glob, States, is_hidden
from trainingjob_trainer.store.object_file import StoredObject

NOT_STANDARD_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders inside the standard library's folder that are not part of it."""


@dataclass(frozen=True)
class FoundEntry:
    """A file or folder below a source's path. `real` is its path without links. `reason` is None: read it."""

    names: tuple[str, ...]
    path: Path
    real: str
    is_linked: bool
    reason: SkipReason | None
    stored: StoredObject | None = None  # None: it is in a file system

    @property
    def name(self) -> str:
        """Return its path relative to the source's path."""
        return "/".join(self.names)


@dataclass(frozen=True)
class _Folder:
    names: tuple[str, ...]
    path: Path
    real: str
    pattern_states: States
    excluded: tuple[States, ...]
    is_linked: bool


class FileSearch:
    """A search for the files that match a pattern and no exclude."""

    def __init__(self, pattern: str, exclude: Sequence[str], *, is_standard: bool = False) -> None:
        self._glob = Glob(pattern)
        self._excludes = [Glob(exclude_pattern, hidden=True) for exclude_pattern in exclude]
        self._left_out = NOT_STANDARD_LIBRARY if is_standard else frozenset[str]()

    def walk(self, root: Path) -> Iterator[FoundEntry]:
        """Yield every entry below a folder, except the content of skipped folders.

        Entries that are reached without a link come first, then those behind links.

        Raises:
            OSError: a folder cannot be listed.
        """
        start = _Folder((), root, os.path.realpath(root), self._glob.start, self._start_excludes(), is_linked=False)
        folders, linked = [start], deque[_Folder]()
        seen: set[tuple[str, States, tuple[States, ...]]] = set()
        while folders or linked:
            folder = folders.pop() if folders else linked.popleft()
            key = folder.real, folder.pattern_states, folder.excluded
            if key in seen:
                yield FoundEntry(folder.names, folder.path, folder.real, folder.is_linked, SkipReason.DUPLICATE)
                continue
            seen.add(key)
            below: list[_Folder] = []
            with os.scandir(folder.path) as items:
                for item in sorted(items, key=lambda item: item.name):
                    found = self._classify(folder, item)
                    if isinstance(found, FoundEntry):
                        yield found
                    elif item.is_symlink():
                        linked.append(found)
                    else:
                        below.append(found)
            folders.extend(reversed(below))

    def walk_objects(self, uri: str, objects: Iterable[StoredObject]) -> Iterator[FoundEntry]:
        """Yield the entry of each object below the URI of a folder. Those of a skipped folder have one entry."""
        previous: tuple[str, ...] = ()
        for stored in objects:
            name = stored.uri.removeprefix(f"{uri}/")
            names, reason = self._classify_names(name.split("/"))
            if names != previous:  # objects of a folder follow each other
                yield FoundEntry(names, Path(name), stored.uri, is_linked=False, reason=reason, stored=stored)
            previous = names

    def is_match(self, name: str) -> bool:
        """Return whether the pattern itself matches a path relative to the source's path."""
        return self._glob.matches(name)

    def _start_excludes(self) -> tuple[States, ...]:
        return tuple(glob.start for glob in self._excludes)

    def _classify_names(self, names: Sequence[str]) -> tuple[tuple[str, ...], SkipReason | None]:
        """Return the path of an object, or of the folder above it that is skipped, and the reason. None: it is read."""
        pattern_states, excluded = self._glob.start, self._start_excludes()
        for count, name in enumerate(names, 1):
            pattern_states = self._glob.advance(pattern_states, name)
            excluded = tuple(glob.advance(states, name) for glob, states in zip(self._excludes, excluded, strict=True))
            if any(glob.is_match(states) for glob, states in zip(self._excludes, excluded, strict=True)):
                return tuple(names[:count]), SkipReason.EXCLUDED
            if count < len(names) and not self._glob.reaches_below(pattern_states):
                return tuple(names[:count]), SkipReason.HIDDEN if is_hidden(name) else SkipReason.NOT_SEARCHED
        return tuple(names), None if self._glob.is_match(pattern_states) else _not_matched(names[-1])

    def _classify(self, folder: _Folder, item: os.DirEntry[str]) -> FoundEntry | _Folder:
        pattern_states = self._glob.advance(folder.pattern_states, item.name)
        excluded = tuple(
            glob.advance(states, item.name) for glob, states in zip(self._excludes, folder.excluded, strict=True)
        )
        is_link = item.is_symlink()
        path = folder.path / item.name
        real = os.path.realpath(path) if is_link else os.path.join(folder.real, item.name)  # noqa: PTH118
        names, is_linked = (*folder.names, item.name), folder.is_linked or is_link
        is_match, is_reached = self._glob.is_match(pattern_states), self._glob.reaches_below(pattern_states)
        reason: SkipReason | None
        if any(glob.is_match(states) for glob, states in zip(self._excludes, excluded, strict=True)):
            reason = SkipReason.EXCLUDED
        elif item.name in self._left_out:
            reason = SkipReason.INSTALLED
        elif path.is_dir() if is_link else item.is_dir():
            if is_reached:
                return _Folder(names, path, real, pattern_states, excluded, is_linked)
            reason = SkipReason.HIDDEN if is_hidden(item.name) else SkipReason.NOT_SEARCHED
        elif path.is_file() if is_link else item.is_file():
            reason = None if is_match else _not_matched(item.name)
        elif is_link:
            reason = SkipReason.BROKEN_LINK if is_match or is_reached else _not_matched(item.name)
        else:
            reason = SkipReason.NOT_A_FILE if is_match else _not_matched(item.name)
        return FoundEntry(names, path, real, is_linked, reason)


def _not_matched(name: str) -> SkipReason:
    return SkipReason.HIDDEN if is_hidden(name) else SkipReason.OTHER_NAME
