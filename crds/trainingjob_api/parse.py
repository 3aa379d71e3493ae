"""Parsing: from whatever stands in `spec` to a `TrainingJobSpec`, or to every reason why not.

The API server refuses text where a number belongs, ignores null, and knows fields by one name only; so does this. A
spec with errors is repaired where that is possible, so that rules across fields can be checked on the rest of it: one
answer then holds all problems. Nothing here raises, whatever comes in.
"""

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainingjob_api.fields import Location, format_path
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem, in_order
from trainingjob_api.sample import sample_at
from trainingjob_api.wording import explain, meant, place_of, show

MAX_DEPTH = 16
"""Levels of objects and lists; the spec itself has 6."""
MAX_BYTES = 256 * 1024
"""The spec goes into a ConfigMap, and twice into each request about its object."""
MAX_PROBLEMS = 64
MAX_ERRORS = 256
"""Of a spec that is repaired. With more of them it is no slip of a hand, and mending it would take seconds."""
_MAX_BITS = 1024
"""Of a whole number; Python itself refuses to write out one much longer."""


@dataclass(frozen=True)
class Parsed:
    """A parsed spec. With problems, `spec` is a repaired one: only what lies outside of `broken` may be judged."""

    spec: TrainingJobSpec | None
    """None: too little of it can be used."""
    problems: tuple[Problem, ...] = ()
    broken: frozenset[Location] = frozenset()
    """Places whose value in `spec` is not the user's."""

    def is_intact(self, paths: Sequence[str]) -> bool:
        """Return whether the fields at these paths, such as `training.steps`, are as the user wrote them."""
        if not self.broken:
            return True
        wanted = [tuple(path.split(".")) for path in paths]
        return not any(_overlap(location, path) for location in self.broken for path in wanted)


class _TooDeepError(Exception):
    """The value is nested too deeply."""


def parse_spec(raw: object) -> Parsed:
    """Return the spec that a raw value stands for, with all problems of its shape and ranges."""
    if not isinstance(raw, dict):
        return _refuse(raw, f"{show(_shallow(raw))} is not an object of fields.")
    num_bytes = count_bytes(raw)  # first: whatever follows takes much longer for each of them
    if num_bytes > MAX_BYTES:
        return _refuse(None, f"has {num_bytes:,} bytes as JSON, but must have at most {MAX_BYTES:,}.")
    try:
        plain = _as_json(raw, MAX_DEPTH)
    except _TooDeepError:
        return _refuse(None, f"is nested more than {MAX_DEPTH} levels deep.")
    spec, errors = _parse(plain)
    if spec is None and _write_whole(plain, errors):
        spec, errors = _parse(plain)
    if spec:
        return Parsed(spec)
    first = sorted(errors, key=lambda error: format_path(error["loc"]))[:MAX_ERRORS]
    problems = tuple(in_order(explain(error) for error in first if _is_telling(error, first))[:MAX_PROBLEMS])
    return _repair(plain, errors, problems) if len(errors) <= MAX_ERRORS else Parsed(None, problems)


def _refuse(value: object, message: str) -> Parsed:
    return Parsed(None, (Problem("spec", value, message),))


def _shallow(raw: object) -> object:
    """Return a value that is safe to print: the kind of a container, not what is in it."""
    return raw if isinstance(raw, str | int | float | bool | None) else type(raw).__name__


def count_bytes(raw: dict[str, Any]) -> int:
    """Return how long a value is as JSON; 0 where that cannot be said, as of endless nesting or numbers."""
    try:
        return len(json.dumps(raw, default=str, skipkeys=True, separators=(",", ":")))
    except (ValueError, RecursionError):
        return 0


def _as_json(value: Any, depth: int) -> Any:
    """Return a value as JSON has it, without nulls in objects."""
    if depth < 0:
        raise _TooDeepError
    if isinstance(value, dict):
        return {_as_text(str(key)): _as_json(item, depth - 1) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_as_json(item, depth - 1) for item in value]
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return math.inf if value > 0 else -math.inf
    return value if isinstance(value, int | float | bool | None) else _as_text(str(value))


def _as_text(text: str) -> str:
    """Return a text without halves of surrogate pairs, which are no text."""
    return text.encode("utf-8", "replace").decode()


def _parse(plain: dict[str, Any]) -> tuple[TrainingJobSpec | None, list[Any]]:
    try:
        # JSON mode: strict about types, but a list is a list. Python mode would ask for tuples.
        spec = TrainingJobSpec.model_validate_json(json.dumps(plain), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, error.errors(include_url=False)
    return spec, []


def _write_whole(plain: dict[str, Any], errors: list[Any]) -> bool:
    """Write whole numbers in the place of floats without a fraction; return whether there were any.

    The API server's type `integer` takes `1.0`, and `kubectl` sends `1e6` as 1000000.
    """
    is_any = False
    for error in errors[:MAX_ERRORS]:
        value = error["input"]
        if error["type"].startswith("int_") and isinstance(value, float) and value.is_integer():
            *parents, last = error["loc"]
            place: Any = plain
            for part in parents:
                place = place[part]
            place[last] = int(value)
            is_any = True
    return is_any


def _is_telling(error: Any, errors: list[Any]) -> bool:
    """Return whether an error says what no other one says better."""
    if error["type"] == "missing":  # misspelt, and told as such
        return all(other["type"] != "extra_forbidden" or meant(other["loc"]) != error["loc"] for other in errors)
    if error["type"] == "too_short":  # pydantic counts only the items that it could parse
        return bool(len(error["input"]) < error["ctx"]["min_length"])
    return True


def _repair(plain: dict[str, Any], errors: list[Any], problems: tuple[Problem, ...]) -> Parsed:
    """Put sample values in the place of broken ones; they are legal, so that what is left parses."""
    broken = {place_of(error) for error in errors}
    mended = copy.deepcopy(plain)
    for location in sorted(broken, key=len, reverse=True):  # what is inside first: its object may go next
        _replace(mended, location)
    # What a misspelt field was meant to be is not what the user had in mind either.
    misspelt = (meant(error["loc"]) for error in errors if error["type"] == "extra_forbidden")
    spec, _ = _parse(mended)
    return Parsed(spec, problems, frozenset(broken | {location for location in misspelt if location}))


def _replace(mended: Any, location: Location) -> None:
    """Set the sample's value at a place, or take away what the sample does not have."""
    *parents, last = location
    place, sample = mended, sample_at(location)
    for part in parents:
        place = place[part]
    if sample is None:
        del place[last]
    else:
        place[last] = copy.deepcopy(sample)


def _overlap(location: Location, path: Location) -> bool:
    """Return whether one place is the other, or lies below it."""
    return all(mine == theirs for mine, theirs in zip(location, path, strict=False))
