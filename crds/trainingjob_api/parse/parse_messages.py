"""Messages for parse errors: the value, what is allowed, and what was probably meant."""

import json
import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from trainingjob_api.base import MAX_PATH, Secret
from trainingjob_api.fields import Location, all_fields, field_names, find_model, format_path, list_patterns
from trainingjob_api.int_or_text import IntOrText
from trainingjob_api.notation import normalize_name
from trainingjob_api.parse.common_mistakes import (
    correct_boolean,
    correct_path,
    find_axis,
    hint_unknown,
    holds_axes,
    reshape,
    schema_at,
)
from trainingjob_api.parse.renamed_fields import find_new_names, find_new_places, hint_restructured, wrap_former_number
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.sample import sample_at
from trainingjob_api.shares import format_share

MAX_SHOWN = 60
"""Maximum characters of a value in a message."""
_LARGE, _FIRST_WITH_EXPONENT = 1e5, 1e21
MAX_MATCHED = 64
"""Longer names are compared by their first characters."""

_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "model": "an object of fields",
    "dict": "an object of fields",
    "finite": "a finite number",
}
_PLAIN_NOUNS = ("a whole number", "a number", "true or false")
_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_LENGTHS = {
    "string_too_short": ("min_length", "at least", "characters"),
    "string_too_long": ("max_length", "at most", "characters"),
    "too_short": ("min_length", "at least", "items"),
    "too_long": ("max_length", "at most", "items"),
}

HIDDEN = "***"
"""What messages show of a value that may be a secret. Messages reach logs, events and the status."""
type _Error = Mapping[str, Any]


def to_problem(error: _Error) -> Problem:
    """Return the problem for one of pydantic's errors about the spec."""
    location = error_location(error)
    if _is_in_secret(location) and not isinstance(error["input"], dict):
        error = {**error, "input": HIDDEN}
    kind = error["type"]
    if kind == "missing":
        return Problem(format_path(location), None, _missing(location))
    if kind == "extra_forbidden":
        return _unknown(location, error["input"])
    make_message = next((say for kinds, say in _MESSAGE_FUNCTIONS if kind in kinds), _type_message)
    message, nearest = make_message(error)
    return Problem(format_path(location), error["input"], message, nearest)


def _is_in_secret(location: Location) -> bool:
    """Return whether a value stands in place of the reference to a secret, or in it: it may be the secret itself."""
    return any(find_model(location[:length]) is Secret for length in range(1, len(location) + 1))


def error_location(error: _Error) -> Location:
    """Return the path that an error is about; for a bad key of a dict, the path of the key itself."""
    location: Location = error["loc"]
    return location[:-1] if _is_of_key(error) else location


def _is_of_key(error: _Error) -> bool:
    """Return whether pydantic's marker `[key]` ends the error's path; a field may have that name, too."""
    is_marked: bool = error["loc"][-2:] == (error["input"], "[key]")
    return is_marked and error["type"] != "extra_forbidden"


def guess_field(location: Location) -> Location | None:  # None: no field of that object has a similar name
    """Return the path of the field that an unknown field was probably meant to be."""
    model = find_model(location[:-1])
    if renamed := find_new_names(location):
        return (*location[:-1], *renamed[0].split("."))
    name = str(location[-1])[:MAX_MATCHED]
    close = _closest(name, field_names(model) if model else ())
    return (*location[:-1], close[0]) if close else None


def format_value(value: Any) -> str:
    """Return a value as a message shows it: plain words unquoted, others as JSON, long values truncated."""
    if isinstance(value, str) and re.fullmatch(r"[\w./:@+-]{1,60}", value):
        return value
    if isinstance(value, float) and value.is_integer() and _LARGE <= abs(value) < _FIRST_WITH_EXPONENT:
        return str(int(value))  # `kubectl` sends `2e9` in this form
    text = json.dumps(value if not isinstance(value, str) else value[: MAX_SHOWN + 1], default=str, ensure_ascii=False)
    text = "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _missing(location: Location) -> str:
    name, sample = str(location[-1]), sample_at(location)
    text = json.dumps(sample) if not isinstance(sample, dict) else f"{{{', '.join(sample)}}}"
    label = "It has the fields" if isinstance(sample, dict) else "Write for example"
    return f"must be set. {label} `{name}: {text}`." if label.startswith("Write") else f"must be set. {label} {text}."


def _unknown(location: Location, value: Any) -> Problem:
    name, parent = str(location[-1])[:MAX_MATCHED], location[:-1]
    model = find_model(parent)
    names = field_names(model) if model else ()
    close = tuple(field for field in _closest(name, names) if _has_same_shape(value, sample_at((*parent, field))))
    if holds_axes(location) and (axis := find_axis(name)):
        close = (axis,)
    message = f"{format_value(name)} is not a field of {format_path(parent)}."
    if renamed := find_new_names(location):
        verb = "moved" if "." in renamed[0] else "was renamed"
        return Problem(format_path(location), value, f"{message} It {verb} to {' or '.join(renamed)}.", renamed)
    if hint := hint_restructured(location, value) or hint_unknown(location, value):
        return Problem(format_path(location), value, f"{message} {hint}")
    named = sorted([path for path in all_fields() if normalize_name(path[-1]) == normalize_name(name)], key=len)
    if isinstance(value, int | float):  # `replicas: 4` is a number of slices, not the section of this name
        named = [path for path in named if not isinstance(sample_at(path), dict)]
    if not close:
        close = _find_below(parent, named, value)
    elsewhere = [format_path(path) for path in (*named, *find_new_places(name))]
    if not close and elsewhere:
        message += f" Was {' or '.join(elsewhere[:2])} meant?"
    elif not close:
        message += describe_fields(format_path(location))
    return Problem(format_path(location), value, message, close)


def _find_below(parent: Location, paths: list[Location], value: Any) -> tuple[str, ...]:
    """Return the only one of some fields that a section has at a lower level, as a path from there, or nothing."""
    below = [path[len(parent) :] for path in paths if parent and path[: len(parent)] == parent]
    if len(below) == 1 and _has_same_shape(value, sample_at((*parent, *below[0]))):
        return (".".join(map(str, below[0])),)
    return ()


def describe_fields(path: str) -> str:
    """Return a sentence that lists the fields beside a path such as `spec.model.heads`."""
    parts = re.findall(r"[^.\[\]]+", path)[1:-1]
    model = find_model(tuple(int(part) if part.isdecimal() else part for part in parts))
    return f" It has {', '.join(field_names(model) if model else ())}."


def _closest(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names most similar to a name, best first, ignoring case."""
    by_plain = {normalize_name(known): known for known in names}
    return tuple(by_plain[found] for found in get_close_matches(normalize_name(name), by_plain, n=2, cutoff=0.7))


def _has_same_shape(value: Any, sample: Any) -> bool:
    """Return whether a value has the shape of a field's value: an object, a list, or neither."""
    return all(isinstance(value, shape) == isinstance(sample, shape) for shape in (dict, list))


def _type_message(error: _Error) -> tuple[str, tuple[str, ...]]:
    kind, value, location = error["type"].split("_")[0], error["input"], error_location(error)
    noun = _NOUNS.get(kind)
    if noun is None:
        return f"{format_value(value)} is not allowed: {error['msg']}.", ()
    if kind == "string" and isinstance(value, bool):
        message, nearest = correct_boolean(value, kind, ())
        return f"{format_value(value)} {message}", tuple(
            suggestion for suggestion in nearest if _is_legal(location, json.loads(suggestion))
        )
    nearest = _nearest_values(kind, value) or reshape(location, kind, value)
    if wrapped := wrap_former_number(location, value):
        nearest = (json.dumps(wrapped),)
    if kind == "int" and (share := list_patterns().get(schema_at(location).get("pattern", ""))):
        noun = share.accepts
        nearest = (format_share(value),) if isinstance(value, float) and 0 < value < 1 else nearest
    if kind == "string" and isinstance(value, int | float):
        nearest = _as_text(location, value)
    if isinstance(value, str) and noun in _PLAIN_NOUNS:  # unquoted, "100" would look like the number
        return (
            f"{json.dumps(value) if len(value) < MAX_SHOWN else format_value(value)} is text, but must be {noun}.",
            nearest,
        )
    return f"{format_value(value)} must be {noun}.", nearest


def _nearest_values(kind: str, value: Any) -> tuple[str, ...]:
    """Return the number or boolean that a text spells, or the whole numbers next to a fraction."""
    if kind == "int" and isinstance(value, float) and abs(value) < _FIRST_WITH_EXPONENT:
        return (str(math.floor(value)), str(math.ceil(value)))
    if not isinstance(value, str) or len(value) > MAX_SHOWN:
        return ()
    plain = re.sub(r"(?<=[0-9])[_,](?=[0-9]{3})", "", value.strip())
    if kind == "bool":
        known = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
        return (known[plain.lower()],) if plain.lower() in known else ()
    if kind not in ("int", "float") or not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?", plain):
        return ()
    is_whole = kind == "int" and float(plain).is_integer()
    if kind == "int" and not is_whole:
        return ()
    return (str(int(float(plain))) if is_whole and not plain.lstrip("-").isdigit() else plain,)


def _as_text(location: Location, number: float) -> tuple[str, ...]:
    """Return the text that a number was meant to be, as the field spells it."""
    written = format_value(number)
    corrected = _normalize(schema_at(location).get("pattern", ""), written)
    return tuple(as_text(text) for text in (written, corrected) if _is_legal(location, text))[:1]


def _is_legal(location: Location, text: str) -> bool:
    node = schema_at(location)
    return re.search(node.get("pattern", ""), text) is not None and text in node.get("enum", (text,))


def _normalize(pattern: str, text: str) -> str:
    """Return what a text was probably meant to be, by the pattern of its field."""
    known = list_patterns().get(pattern)
    return known.normalize(text[:MAX_SHOWN]) if known else text


def _choice_message(error: _Error) -> tuple[str, tuple[str, ...]]:
    choices = tuple(re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    value, location = error["input"], error_location(error)
    if isinstance(value, bool):
        message, nearest = correct_boolean(value, "choice", choices)
        return f"{format_value(value)} {message}", nearest
    if len(choices) == 1 and isinstance(value, str):
        only = tuple(get_close_matches(normalize_name(value)[:MAX_MATCHED], choices, n=1, cutoff=0.7))
        return f"{format_value(value)} must be {choices[0]}: there is no other choice.", only
    by_plain = {normalize_name(choice): choice for choice in choices}
    close = get_close_matches(normalize_name(str(value)[:MAX_MATCHED]), by_plain, n=1, cutoff=0.5)
    nearest = tuple(by_plain[name] for name in close)
    if holds_axes(location) and isinstance(value, str) and (axis := find_axis(value)):
        nearest = (axis,) if axis in choices else ()
    hint = " Convert its model to a tokenizer.json file." if value in _OTHER_TOKENIZERS else ""
    if location == ("tokenizer", "type") and value in _HUGGING_FACE:
        nearest = ("huggingFace",)
    if location == ("data", "packing", "type") and normalize_name(str(value)[:MAX_MATCHED]) in _FIRST_FIT:
        hint = " `bestFit` takes as long as first fit and leaves less padding."
    if location[0] in ("data", "evaluation") and location[-1] == "format" and not nearest:
        hint = " Data of another kind must be converted to one of these formats first."
        if normalize_name(str(value)[:MAX_MATCHED]) in _HUB_FORMATS:
            hint = (
                " For a data set of the hub, set `huggingFace.repository` and the format of its files. A folder of "
                "`save_to_disk` has `format: arrow`."
            )
    return f"{format_value(value)} must be one of {', '.join(choices)}.{hint}", nearest


_HUB_FORMATS = ("huggingface", "huggingfacedisk", "hf", "datasets", "hub")
_HUGGING_FACE = ("hf", "auto", "fast", "transformers")
_FIRST_FIT = ("firstfit", "firstfitdecreasing", "ffd")
_OTHER_TOKENIZERS = ("tiktoken",)


def _limit_message(error: _Error) -> tuple[str, tuple[str, ...]]:
    if error["input"] != error["input"]:  # only NaN differs from itself
        return "NaN must be a number.", ()
    key, comparison = _LIMITS[error["type"]]
    limit = error["ctx"][key]
    nearest = (f"{limit:g}" if isinstance(limit, float) else str(limit),) if key in ("ge", "le") else ()
    limit_text = nearest[0] if nearest else f"{limit:g}"
    return f"{format_value(error['input'])} must be {comparison} {limit_text}.", nearest


def _length_message(error: _Error) -> tuple[str, tuple[str, ...]]:
    key, comparison, unit_plural = _LENGTHS[error["type"]]
    limit = error["ctx"][key]
    unit = unit_plural if limit != 1 else unit_plural.removesuffix("s")
    return f"has {len(error['input'])} {unit_plural}, but must have {comparison} {limit} {unit}.", ()


def _pattern_message(error: _Error) -> tuple[str, tuple[str, ...]]:
    pattern, value = error["ctx"]["pattern"], error["input"]
    known = list_patterns()[pattern]
    message = f"{format_value(value)} must be {known.accepts}."
    if _is_of_key(error):  # the pattern applies to the key, not to its value
        return message, ()
    if known.is_path:
        answer = correct_path(error_location(error), value[:MAX_PATH], pattern)
        if answer:
            error_text, nearest = answer
            return f"{format_value(value)} {error_text}", nearest
    if isinstance(known, IntOrText) and (number := value.strip()).isdecimal():
        legal = min(max(int(number), known.minimum), known.maximum)
        return f"{json.dumps(number)} is text, but must be {known.accepts}.", (str(legal),)
    corrected = _normalize(pattern, value)
    return message, (as_text(corrected),) if corrected != value and re.fullmatch(pattern, corrected) else ()


_MESSAGE_FUNCTIONS: tuple[
    tuple[Mapping[str, Any] | tuple[str, ...], Callable[[_Error], tuple[str, tuple[str, ...]]]], ...
] = (
    (("literal_error", "enum"), _choice_message),
    (_LIMITS, _limit_message),
    (_LENGTHS, _length_message),
    (("string_pattern_mismatch",), _pattern_message),
)
