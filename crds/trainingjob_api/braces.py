"""Braces in glob patterns: lists such as `{a,b}`, and ranges of numbers such as `{00..99}`, as in a shell."""

import re

MAX_ALTERNATIVES = 1024
"""Maximum number of patterns that a pattern with braces stands for."""
BRACES = re.compile(r"\{([^{}/]*(?:,|\.\.)[^{}/]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")
_LETTERS = re.compile(r"([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z])")


class BraceError(ValueError):
    """Braces stand for no patterns, or for too many. `nearest` are the patterns that were probably meant."""

    def __init__(self, message: str, *nearest: str) -> None:
        super().__init__(message)
        self.nearest = nearest


def expand_braces(text: str) -> tuple[str, ...]:
    """Return the patterns that a pattern stands for, without duplicates; a pattern without braces is its only one.

    Raises:
        BraceError: the braces are invalid.
    """
    patterns = [text]
    while any(BRACES.search(pattern) for pattern in patterns):
        patterns = [expanded for pattern in patterns for expanded in _expand_first(pattern)]
        if len(patterns) > MAX_ALTERNATIVES:
            raise BraceError(f"must stand for at most {MAX_ALTERNATIVES:,} patterns. Write `*` instead of some braces.")
    if "" not in text.split("/") and any("" in pattern.split("/") for pattern in patterns):
        raise BraceError("must not have braces that leave a name empty.")
    return tuple(dict.fromkeys(patterns))


def _expand_first(text: str) -> list[str]:
    """Return the patterns that the first braces without others inside stand for."""
    match = BRACES.search(text)
    if match is None:
        return [text]
    before, inside, after = text[: match.start()], match[1], text[match.end() :]
    return [f"{before}{option}{after}" for option in _list_options(before, inside, after)]


def _list_options(before: str, inside: str, after: str) -> list[str]:
    if ".." not in inside:
        return inside.split(",")
    if match := _RANGE.fullmatch(inside):
        first, last = int(match[1]), int(match[2])
        if first > last:
            swapped = f"{before}{{{match[2]}..{match[1]}}}{after}"
            raise BraceError("must have ranges in ascending order.", swapped)
        if last - first >= MAX_ALTERNATIVES:
            raise BraceError(f"must have ranges of at most {MAX_ALTERNATIVES:,} numbers. Write `*` instead.")
        is_padded = any(len(end) > 1 and end.startswith("0") for end in match.groups())
        width = max(map(len, match.groups())) if is_padded else 0
        return [f"{number:0{width}}" for number in range(first, last + 1)]
    letters = _LETTERS.fullmatch(inside)
    nearest = (f"{before}[{inside.replace('..', '-')}]{after}",) if letters else ()
    raise BraceError("must have ranges of whole numbers alone in braces, such as `{00..99}`.", *nearest)
