"""Parsing of a raw `spec` into a `TrainingJobSpec`, or into every problem that prevents it.

Like the API server, the parser rejects text in place of a number, ignores null, and knows each field by one name only.
A spec with errors is repaired where possible, so that rules across fields can still be checked. So one answer lists all
problems. No input raises an exception.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from trainingjob_api.fields import Location, format_path
from trainingjob_api.parse.parse_messages import error_location, format_value, guess_field, to_problem
from trainingjob_api.presets.merge import merge_preset
from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.problem import Problem, in_order
from trainingjob_api.sample import sample_at
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.replaced_sections import REPLACED_SECTIONS, TRAINER_SECTIONS

MAX_DEPTH = 16
"""Levels of objects and lists; the spec itself has 6."""
MAX_BYTES = 256 * 1024
"""The spec is stored in a ConfigMap, and twice in each request about its object."""
MAX_PROBLEMS = 64
MAX_ERRORS = 256
"""Limit for repair. A spec with more errors is not a typo, and a repair would take seconds."""
PROGRAM: Location = ("program",)
MODELS: tuple[tuple[str, ...], ...] = (("model",), ("objective", "distill", "teacher", "model"))
"""The sections of a spec that describe a model."""
_MAX_BITS = 1024
"""Limit of a whole number: Python refuses to print much longer ones."""


@dataclass(frozen=True)
class Parsed:
    """A parsed spec. With problems, `spec` is a repaired one: only fields outside of `broken` may be validated."""

    spec: TrainingJobSpec | None
    """None: too little of the spec is usable."""
    problems: tuple[Problem, ...] = ()
    broken: frozenset[Location] = frozenset()
    """Locations whose value in `spec` is not the user's."""

    def is_as_written(self, paths: Sequence[str]) -> bool:
        """Return whether the fields at these paths, such as `training.steps`, have the user's values.

        With `program.command`, only a rule about it reads the sections of the trainer: their values mean nothing.
        """
        has_command = self.spec is not None and self.spec.command_program is not None
        if not self.broken and not has_command:  # first: every check calls this for hundreds of rules
            return True
        locations = [_split(path) for path in paths]
        if has_command and PROGRAM not in locations and any(path[0] in TRAINER_SECTIONS for path in locations):
            return False
        return not any(_overlap(location, path) for location in self.broken for path in locations)


class _TooDeepError(Exception):
    """The value is nested too deeply."""


def parse_spec(raw: object, presets: Mapping[str, Preset] = PRESETS) -> Parsed:
    """Return the spec of a raw value, with all problems of its structure and ranges.

    `presets` are those that its model can name.
    """
    if not isinstance(raw, dict):
        return _rejected(raw, f"{format_value(_printable(raw))} must be an object of fields.")
    num_bytes = count_bytes(raw)  # first, because every later check takes much longer per byte
    if num_bytes > MAX_BYTES:
        return _rejected(None, f"has {num_bytes:,} bytes as JSON, but must have at most {MAX_BYTES:,}.")
    try:
        document = _as_json(raw, MAX_DEPTH)
    except _TooDeepError:
        return _rejected(None, f"is nested more than {MAX_DEPTH} levels deep.")
    unknown = _merge_presets(document, presets)
    parsed = _parse_document(document)
    if not unknown:
        return parsed
    problems = tuple(in_order((*unknown.values(), *parsed.problems)))
    return replace(parsed, problems=problems, broken=parsed.broken | unknown.keys())


def _merge_presets(document: dict[str, Any], presets: Mapping[str, Preset]) -> dict[Location, Problem]:
    """Give the model sections of a spec the values of their presets, and return the problems of unknown ones.

    A section with an unknown preset becomes that of the sample.
    """
    unknown: dict[Location, Problem] = {}
    for location in MODELS:
        *parents, last = location
        section: Any = document
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict) and last in section:
            section[last], problem = merge_preset(section[last], presets, format_path(location))
            if problem:
                unknown[location] = problem
                section[last] = copy_containers(sample_at(location))
    return unknown


def _parse_document(document: dict[str, Any]) -> Parsed:
    """Return the spec of a JSON value, with all problems of its structure and ranges."""
    spec, errors = _parse(document)
    if spec is None and _replace_integral_floats(document, errors):
        spec, errors = _parse(document)
    if spec:
        return Parsed(spec)
    first = sorted(errors, key=lambda error: format_path(error["loc"]))[:MAX_ERRORS]
    problems = tuple(in_order(to_problem(error) for error in first if _is_primary(error, first))[:MAX_PROBLEMS])
    return _repair(document, errors, problems) if len(errors) <= MAX_ERRORS else Parsed(None, problems)


def _rejected(value: object, message: str) -> Parsed:
    return Parsed(None, (Problem("spec", value, message),))


def _printable(raw: object) -> object:
    """Return a value that is safe to print: the type of a container, not its content."""
    return raw if isinstance(raw, str | int | float | bool | None) else type(raw).__name__


def count_bytes(raw: dict[str, Any]) -> int:
    """Return the length of a value as JSON; 0 if unknown, as for endless nesting or numbers."""
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


def copy_containers(value: Any) -> Any:
    """Return a copy of a value of JSON; only its lists and objects are copied. Several times faster than `deepcopy`.

    Raises:
        RecursionError: the value contains itself, or is nested too deeply.
    """
    if isinstance(value, dict):
        return {key: copy_containers(item) for key, item in value.items()}
    return [copy_containers(item) for item in value] if isinstance(value, list) else value


def _as_text(text: str) -> str:
    """Return a text without unpaired surrogates, which are not valid text."""
    return text.encode("utf-8", "replace").decode()


def _parse(document: dict[str, Any]) -> tuple[TrainingJobSpec | None, list[Any]]:
    missing: list[Any] = [
        {"type": "missing", "loc": (name,), "msg": "Field required", "input": document}
        for name in REPLACED_SECTIONS
        if name not in document and not _replaces_trainer(document.get("program"))
    ]
    try:
        # JSON mode is strict about types, but accepts lists. Python mode would require tuples.
        spec = TrainingJobSpec.model_validate_json(json.dumps(document), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, [*missing, *error.errors(include_url=False)]
    return (None, missing) if missing else (spec, [])


def _replaces_trainer(program: object) -> bool:
    """Return whether a `program` section as it was written has no function of the built-in trainer."""
    return program is not None and not (isinstance(program, dict) and "entrypoint" in program)


def _replace_integral_floats(document: dict[str, Any], errors: list[Any]) -> bool:
    """Replace floats without a fraction by whole numbers; return whether any was replaced.

    The API server's type `integer` accepts `1.0`, and `kubectl` sends `1e6` as 1000000.
    """
    is_any = False
    for error in errors[:MAX_ERRORS]:
        value = error["input"]
        if error["type"].startswith("int_") and isinstance(value, float) and value.is_integer():
            *parents, last = error["loc"]
            parent: Any = document
            for part in parents:
                parent = parent[part]
            parent[last] = int(value)
            is_any = True
    return is_any


def _is_primary(error: Any, errors: list[Any]) -> bool:
    """Return whether no other error explains the problem better."""
    if error["type"] == "missing":  # a misspelt field, which another error reports
        return all(other["type"] != "extra_forbidden" or guess_field(other["loc"]) != error["loc"] for other in errors)
    if error["type"] == "too_short":  # pydantic counts only the items that it could parse
        return bool(len(error["input"]) < error["ctx"]["min_length"])
    return True


def _repair(document: dict[str, Any], errors: list[Any], problems: tuple[Problem, ...]) -> Parsed:
    """Replace invalid values by sample values, which are valid, so that the rest can be parsed."""
    broken = {error_location(error) for error in errors}
    repaired = copy_containers(document)
    for location in sorted(broken, key=len, reverse=True):  # innermost first: an enclosing object may be removed next
        _replace(repaired, location)
    # A misspelt field also leaves the intended field without the user's value.
    misspelt = (guess_field(error["loc"]) for error in errors if error["type"] == "extra_forbidden")
    spec, _ = _parse(repaired)
    return Parsed(spec, problems, frozenset(broken | {location for location in misspelt if location}))


def _replace(repaired: Any, location: Location) -> None:
    """Set the sample's value at a location, or remove the field if the sample has none."""
    *parents, last = location
    parent, sample = repaired, sample_at(location)
    for part in parents:
        parent = parent[part]
    if sample is None:
        del parent[last]
    else:
        parent[last] = copy.deepcopy(sample)


def _overlap(location: Location, path: Location) -> bool:
    """Return whether one location is the other, or a prefix of it."""
    shared = min(len(location), len(path))
    return location[:shared] == path[:shared]


@cache
def _split(path: str) -> Location:
    return tuple(path.split("."))
