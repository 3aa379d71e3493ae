"""Sizes of the values of a chat template, with all that is inside of them.

A list may hold another list many times. Text of it, or a comparison with it, takes as long as if all were different, so
that the size is measured before either is made.
"""

import json
import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from trainingjob_trainer.data.chat.template_limits import MAX_INDENT, BudgetError, check_size

MAX_ITEMS = 200_000
"""Maximum items of a value that is compared or becomes text."""
ITEM_COST = 10
BITS_OF_A_DIGIT = 3
CONTAINERS = (list, tuple, dict, KeysView, ItemsView, ValuesView)
SCANNED_METHODS = frozenset({"changed", "count", "find", "index", "rfind", "rindex"})
"""Methods of texts and loops that take as long as their text or argument is large, and return a small value."""
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
"""Operators by the names of Jinja."""


class Extent(NamedTuple):
    """How large a value is."""

    items: int
    """Items of lists and objects. An item that occurs twice counts twice."""
    characters: int
    """Characters of texts and numbers."""
    depth: int
    """How deeply lists and objects are nested."""

    @property
    def work(self) -> int:
        """Return the cost of reading all of the value."""
        return ITEM_COST * self.items + self.characters


class OpaqueNamespace(Namespace):
    """A namespace whose text does not show its values: they may grow after the namespace has been measured."""

    def __repr__(self) -> str:
        """Return a text of bounded size."""
        return "<Namespace>"


def read_items(value: Any) -> Any:
    """Return the items of a generator as a list, and any other value as it is."""
    return list(value) if isinstance(value, Iterator) else value


def measure(value: Any) -> Extent:
    """Return the size of a value.

    Raises:
        BudgetError: it has more than `MAX_ITEMS` items.
    """
    items, characters, depth = 0, _count_characters(value), 0
    containers = [(value, 1)] if isinstance(value, CONTAINERS) else []
    while containers:
        container, level = containers.pop()
        items, depth = items + len(container), max(depth, level)
        if items > MAX_ITEMS:
            raise BudgetError(f"compares or writes a value of more than {MAX_ITEMS:,} items")
        for part in _list_parts(container):
            if isinstance(part, CONTAINERS):
                containers.append((part, level + 1))
            else:
                characters += _count_characters(part)
    return Extent(items, characters, depth)


def measure_work(value: Any) -> int:
    """Return the cost of reading all of a value."""
    return measure(value).work


def measure_text(value: Any) -> int:
    """Return the cost of the text of a value, whose size is checked before it is made."""
    extent = measure(value)
    check_size(extent.characters)
    return extent.work


def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: FBT001, FBT002  as in transformers
    """Return JSON as `transformers` writes it: without HTML escapes."""
    indent = options.pop("indent", None)
    if isinstance(indent, str) or (indent or 0) > MAX_INDENT:
        raise SecurityError(f"indents JSON by more than {MAX_INDENT} blanks")
    extent = measure(value)
    check_size(extent.items * extent.depth * (indent or 0))
    known = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known)


def check_formatted(text: Any, values: Any) -> None:
    """Check the size of `text % values`. Several conversions may name one value of an object."""
    if isinstance(text, str):
        repeats = text.count("%") if isinstance(values, dict) else 1
        check_size(repeats * measure(values).characters)


def comparison_cost(name: str, left: Any, right: Any) -> int:
    """Return the cost of a comparison, by the name of its operator."""
    if isinstance(left, str) and isinstance(right, str):
        return len(right) if name in ("in", "notin") else min(len(left), len(right))
    if isinstance(right, CONTAINERS):
        return measure_work(right) + (measure_work(left) if isinstance(left, CONTAINERS) else 0)
    return 0


def _list_parts(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        container = container.items()
    if isinstance(container, ItemsView):
        return (part for item in container for part in item)
    return container  # type: ignore[no-any-return]


def _count_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return value.bit_length() // BITS_OF_A_DIGIT if isinstance(value, int) else 0
