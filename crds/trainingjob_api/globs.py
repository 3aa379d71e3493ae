"""Glob patterns of text sources: matching, and unsupported syntax from other programs.

The apply check and the hosts use the same code, so an accepted pattern also works.
"""

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from pathlib import PurePosixPath

from trainingjob_api.braces import BRACES, BraceError, expand_braces

type States = frozenset[int]
"""The numbers of pattern parts that a path may have matched so far."""

ANY = "**"
MAX_GLOB = 256
"""Maximum length of a pattern in characters."""
SYSTEM_ENTRIES = frozenset(
    {"$RECYCLE.BIN", "@eaDir", "#recycle", "#snapshot", "__MACOSX", "lost+found", "System Volume Information"}
)
"""Entries that file systems and storage servers create beside the user's files."""

_LISTED = re.compile(r"(?<=\w)[,;| ]+(?=\*)")
_LIST = re.compile(r"\*\.\w+[,;| ]+\*")
_GROUP = re.compile(r"[@!+?*]\([^()/]*\)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CLASS = re.compile(r"\[[!^]?\]?[^\]]*\]")


def is_hidden(name: str) -> bool:
    """Return whether a source skips a file or folder of this name, unless its pattern names it."""
    return name.startswith(".") or name in SYSTEM_ENTRIES


class Glob:
    """A pattern, matched part by part along a path. `**` matches any number of folders, braces one of several names.

    Wildcards do not match hidden names, as in a shell, unless `hidden` is set.

    Raises:
        BraceError: the braces of the pattern are invalid.
    """

    def __init__(self, pattern: str, *, hidden: bool = False) -> None:
        self._parts = PurePosixPath(pattern).parts
        self._names = [expand_braces(part) for part in self._parts]
        self._matchers = [
            None if part == ANY else _compile_names(*names)
            for part, names in zip(self._parts, self._names, strict=True)
        ]
        self._hidden = hidden
        self.start: States = self._close({0})

    def advance(self, states: States, name: str) -> States:
        """Return the states after one more part of a path."""
        found: set[int] = set()
        for state in states - {len(self._parts)}:
            matcher = self._matchers[state]
            if matcher is None:
                found |= {state} if self._hidden or not is_hidden(name) else set()
            elif matcher.fullmatch(name) and self._is_named(self._names[state], name):
                found.add(state + 1)
        return self._close(found)

    def is_match(self, states: States) -> bool:
        """Return whether the path so far matches the pattern."""
        return len(self._parts) in states

    def reaches_below(self, states: States) -> bool:
        """Return whether a longer path can match the pattern."""
        return any(state < len(self._parts) for state in states)

    def matches(self, path: str) -> bool:
        """Return whether a complete relative path matches."""
        states = self.start
        for name in PurePosixPath(path).parts:
            states = self.advance(states, name)
        return self.is_match(states)

    def _is_named(self, names: tuple[str, ...], name: str) -> bool:
        if self._hidden or not is_hidden(name):
            return True
        return any(
            alternative == name or (alternative.startswith(".") and compile_wildcards(alternative).fullmatch(name))
            for alternative in names
        )

    def _close(self, states: set[int]) -> States:
        """Return the states, and those that follow if `**` matches no folder."""
        closed = set(states)
        for state in range(len(self._parts)):
            if state in closed and self._parts[state] == ANY:
                closed.add(state + 1)
        return frozenset(closed)


def _compile_names(*names: str) -> re.Pattern[str]:
    """Return the expression of names with wildcards: one of them."""
    if len(names) == 1:
        return compile_wildcards(names[0])
    return re.compile("|".join(f"(?:{translate(name)})" for name in names))


@lru_cache(maxsize=1024)
def compile_wildcards(part: str) -> re.Pattern[str]:
    """Return the expression of a text with `*`, `?` and `[...]`. It matches whole names."""
    return re.compile(translate(part))


@dataclass(frozen=True)
class PatternProblem:
    """An error of a pattern, and the patterns that were probably meant, best first."""

    message: str
    nearest: tuple[str, ...] = ()


def find_pattern_problem(
    pattern: str, *, folders: bool = False
) -> PatternProblem | None:  # None: the pattern is supported
    """Return the error of a file pattern; `folders`: the pattern may also match folders."""
    fault = _find_foreign_syntax(pattern) or _find_misplaced(pattern) or (None if folders else _find_folder(pattern))
    if fault is None:
        return None
    candidates = (
        suggestion
        for suggestion in dict.fromkeys(fault.nearest)
        if 0 < len(suggestion) <= MAX_GLOB and suggestion != pattern
    )
    return PatternProblem(
        fault.message,
        tuple(suggestion for suggestion in candidates if find_pattern_problem(suggestion, folders=folders) is None),
    )


def _find_foreign_syntax(pattern: str) -> PatternProblem | None:
    """Return the error of a pattern with the syntax of another program."""
    if _CONTROL.search(pattern):
        cleaned = _CONTROL.sub("", pattern)
        return PatternProblem("must not contain line breaks, tabs or other control characters.", (cleaned,))
    if pattern != pattern.strip():
        return PatternProblem("must not begin or end with a space.", (pattern.strip(),))
    if "\\" in pattern:
        cleaned = re.sub(r"\\(?=[^\w*?\[]|$)", "", pattern).replace("\\", "/")
        message = "must not contain a backslash: folders are separated by `/`, and `[*]` matches a star."
        return PatternProblem(message, (cleaned,))
    if _GROUP.search(pattern):
        return PatternProblem("must not contain a group such as `@(a|b)`. Write one source for each pattern.")
    if pattern.startswith("!"):
        return PatternProblem(
            "must not begin with `!`: write what to leave out under `exclude`.", (pattern.lstrip("!"),)
        )
    try:
        expand_braces(pattern)
    except BraceError as error:
        return PatternProblem(str(error), error.nearest)
    if _LIST.search(BRACES.sub("", pattern)):
        message = "must be one pattern, not a list. Write one source for each pattern."
        return PatternProblem(message, tuple(_LISTED.split(pattern)))
    return None


def _find_misplaced(pattern: str) -> PatternProblem | None:
    """Return the error of a pattern with misplaced stars or brackets."""
    parts = pattern.split("/")
    if "***" in pattern:
        message = "must not contain `***`: a `*` matches within a name, `**` any number of folders."
        return PatternProblem(message, (re.sub(r"\*{3,}", ANY, pattern),))
    if any(ANY in part and part != ANY for part in parts):
        message = "must have `**` only between slashes: it matches any number of folders."
        return PatternProblem(message, ("/".join(_split_stars(part) for part in parts),))
    if "[^" in pattern:
        return PatternProblem(
            "must negate a set of characters with `[!`, not with `[^`.", (pattern.replace("[^", "[!"),)
        )
    if "[" in _CLASS.sub("", pattern):
        return PatternProblem("must close every `[` with a `]`; `[[]` matches a bracket.")
    if any(_is_empty_range(match[0]) for match in _CLASS.finditer(pattern)):
        return PatternProblem("must have ranges such as `[a-z]` in ascending order.")
    return None


def _find_folder(pattern: str) -> PatternProblem | None:
    """Return the error of a pattern that matches no file."""
    if not PurePosixPath(pattern).parts:
        return PatternProblem("must match files: it names the folder itself.", ("**/*",))
    if pattern.endswith("/"):
        return PatternProblem("must match files, not folders: it ends with `/`.", (f"{pattern.rstrip('/')}/**/*",))
    return None


def _split_stars(part: str) -> str:
    """Return a part such as `**.py` as it was probably meant: `**/*.py`."""
    if ANY not in part or part == ANY:
        return part
    before, _, after = part.partition(ANY)
    return f"{before}*/{ANY}/*{after}" if before else f"{ANY}/*{after}"


def _is_empty_range(chars: str) -> bool:
    return any(first > last for first, last in re.findall(r"(\w)-(\w)", chars))


def excludes_everything(pattern: str, exclude: str) -> bool:
    """Return whether an exclude pattern excludes every file that a pattern can match."""
    parts = [PurePosixPath(alternative).parts for alternative in expand_braces(exclude)]
    has_all = any(set(path_parts) <= {ANY, "*"} and path_parts.count("*") <= 1 for path_parts in parts)
    return has_all or {PurePosixPath(alternative).parts for alternative in expand_braces(pattern)} <= set(parts)
