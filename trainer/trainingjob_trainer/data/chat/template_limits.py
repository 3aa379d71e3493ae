"""Limits of what a chat template may compute: checked before the result is made, where it may be much larger."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError, TemplateRuntimeError

MAX_COST = 200_000_000
"""Cost of rendering one conversation: characters and items that are made, with `STEP_COST` for each step."""
STEP_COST = 200
"""Cost of a call, and of one run of the body of a loop, macro or block."""
MAX_VALUE = 10_000_000
"""Maximum characters or items of a value."""
MAX_RANGE = 10_000
MAX_BITS = 1024
MAX_INDENT = 100

WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)")
"""A conversion of `%` that pads to a thousand characters or more, or to a width that is an argument."""


class BudgetError(TemplateRuntimeError):
    """A template does more work than its budget allows."""


def bounded_range(*bounds: int) -> range:
    """Return a range with a bounded number of items."""
    found = range(*bounds)
    if len(found) > MAX_RANGE:
        raise BudgetError(f"uses a range of more than {MAX_RANGE:,} numbers")
    return found


def checked(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """Return a function whose arguments are checked first."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)

    return checked


def check_size(size: int) -> None:
    """Raise `BudgetError` for a value of too many characters or items."""
    if size > MAX_VALUE:
        raise BudgetError(f"makes a value of more than {MAX_VALUE:,} characters")


def check_product(left: Any, right: Any) -> None:
    """Check the size of `left * right`."""
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, bytes, list, tuple)) and isinstance(times, int):
            check_size(len(value) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_size_of_number(left.bit_length() + right.bit_length())


def check_power(left: Any, right: Any) -> None:
    """Check the size of `left ** right`."""
    if isinstance(left, int) and isinstance(right, int):
        _check_size_of_number(left.bit_length() * right)


def _check_size_of_number(num_bits: int) -> None:
    if num_bits > MAX_BITS:
        raise BudgetError(f"makes a number of more than {MAX_BITS:,} bits")


def check_text_method(method: Any, args: tuple[Any, ...]) -> None:
    """Check the size of the result of a text's methods `join` and `replace` before it is made."""
    text = getattr(method, "__self__", None)
    match getattr(method, "__name__", ""):
        case "join" if isinstance(text, str) and args:
            _check_join(args[0], text)
        case "replace" if isinstance(text, str):
            _check_replace(text, *args[:2])


def check_format(text: Any) -> None:
    """Check the width that `text % values` pads to."""
    if isinstance(text, str) and WIDE_FORMAT.search(text):
        raise SecurityError("pads a text with `%` to a thousand characters or more")


def check_filter_join(_: Any, value: Any, d: Any = "", attribute: Any = None) -> None:
    """Check the size of the filter `join`, whose arguments have the names of Jinja."""
    del attribute
    _check_join(value, str(d))


def check_filter_replace(_: Any, s: Any, old: Any, new: Any, count: Any = None) -> None:
    """Check the size of the filter `replace`, whose arguments have the names of Jinja."""
    del count
    _check_replace(str(s), str(old), str(new))


def _check_join(parts: Any, separator: str) -> None:
    if isinstance(parts, (list, tuple)):
        check_size(sum(len(part) for part in parts if isinstance(part, str)) + len(separator) * len(parts))
    elif len(separator) > MAX_INDENT:
        raise SecurityError("joins with a long separator what is not a list")


def _check_replace(text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        check_size(len(text) + text.count(old) * len(new))


def check_indent(s: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    """Check the size of the filter `indent`, whose arguments have the names of Jinja."""
    size = len(width) if isinstance(width, str) else width
    if size > MAX_INDENT:
        raise SecurityError(f"indents by more than {MAX_INDENT} blanks")
    check_size(len(str(s)) * (size + 1))
