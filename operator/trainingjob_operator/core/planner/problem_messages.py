"""Sentences that several problems share, so that equal errors have equal messages."""

from collections.abc import Iterable


def quote_field(path: str, value: object) -> str:
    """Return a field with its value: `spec.model.numHeads` (8)."""
    return f"`{path}` ({value})"


def join_words(items: Iterable[str]) -> str:
    """Return items as an enumeration: `a`, `a and b`, `a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def must_divide(divisor: object, dividends: Iterable[str]) -> str:
    """Return the message for a number that does not divide others."""
    return f"{divisor} must divide {join_words(dividends)}."


def must_be_direct(path: object, noun: str = "folder") -> str:
    """Return the message for a path with `..`."""
    return f"{path} must not contain `..`. Write the direct path of the {noun}."


def must_be_unique(value: str, owner: str, noun: str = "name") -> str:
    """Return the message for a value that an earlier item has, too."""
    return f"{value} must be unique, but {owner} has the same {noun}."


def has_no_effect(reason: str, subject: str = "") -> str:
    """Return the warning about a setting that the job ignores, for a reason that follows `because`."""
    return f"{subject} has no effect because {reason}.".lstrip()
