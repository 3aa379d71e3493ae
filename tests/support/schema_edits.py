"""Edits of a spec that the API's own schema gives: operations that know no field by name (Acto; Gu et al., 2023).

What the API server never lets change is refused as its rules have it. All else is an edit, also what no rule allows:
where the webhook is away it is stored.
"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainingjob_api.base import seconds
from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.schema import spec_schema
from trainingjob_api.spec.job import KEEP_REPLICAS

type Names = tuple[str, ...]
type Node = dict[str, Any]
type Change = Callable[[Node, Any], Any]
"""Return the new value of a field by its schema and its old value, None where it is left out."""

SCHEMA = spec_schema()
TEXTS = (
    "held-out",
    "/shared/another/folder",
    "10m",
    "1Gi",
    "label",
    "10%",
    "/shared/chat.jinja",
    "http://tracker:5000",
    "team/metrics",
    "losses:customize",
)
"""One for each pattern; the first that fits is taken."""
GREATEST = 10_000
"""What a number is that was left out, where it may be so large: none of them is to end a short life."""
_HAS = re.compile(r"has\(self\.(\w+)\) == has\(oldSelf\.\1\)")
_UNLESS_COMMAND = re.compile(r"has\(self\.program\) && !has\(self\.program\.entrypoint\) \|\| has\(self\.(\w+)\)")
_NAMES = "self.map(item, item.name) == oldSelf.map(item, item.name)"
_AMOUNT = re.compile(r"([0-9]+)(.*)")


@dataclass(frozen=True)
class Edit:
    """One operation on one field. `[]` in a path is the last item of a list."""

    path: Names
    operation: str

    def __repr__(self) -> str:
        """Return the edit as text, for a schedule that fails."""
        return f"{self.operation} {'.'.join(self.path)}"


def list_edits() -> list[Edit]:
    """Return every operation on every field of the spec."""
    return list(_walk((), SCHEMA, required=True))


def is_live(edit: Edit) -> bool:
    """Return whether the API server allows an edit's field to change, apart from its value."""
    fixed = [path for path, rules in SPEC_RULES.items() for rule in rules if rule["rule"] == "self == oldSelf"]
    optional = [
        (*path, match[1])
        for path, rules in SPEC_RULES.items()
        for rule in rules
        if (match := _HAS.fullmatch(rule["rule"]))
    ]
    return not any(edit.path[: len(path)] == path for path in (*fixed, *optional))


def change(spec: Node, edit: Edit) -> Node:
    """Return a spec after an edit, with its defaults as the API server writes them."""
    changed = copy.deepcopy(spec)
    place, schema = changed, SCHEMA
    for name in edit.path[:-1]:
        schema = schema["items"] if name == "[]" else schema["properties"][name]
        place = (place[-1:] or [{}])[0] if name == "[]" else place.setdefault(name, [] if "items" in schema else {})
    name = edit.path[-1]
    value = _OPERATIONS[edit.operation](schema["properties"][name], place.pop(name, None))
    if value is not None:
        place[name] = value
    return with_defaults(SCHEMA, changed)


def with_defaults(schema: Node, value: Any) -> Any:
    """Return a value with what its schema fills in."""
    if isinstance(value, list):
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    of = schema["properties"]
    filled = {name: node["default"] for name, node in of.items() if "default" in node} | value
    return {name: with_defaults(of.get(name, {}), item) for name, item in filled.items()}


def refuse(old: Node, new: Node) -> str:
    """Return the message with which the API server rejects an edit of one spec into another; empty: it accepts it."""
    for path, rules in SPEC_RULES.items():
        for before, after in _pairs(old, new, path):
            broken = (rule["message"] for rule in rules if not _holds(rule["rule"], before, after))
            if message := next(broken, ""):
                return str(message)
    return ""


def _pairs(old: Any, new: Any, path: Names) -> Iterator[tuple[Any, Any]]:
    """Yield the values at a path before and after, if both exist: items of a list by their names."""
    if not path:
        yield old, new
    elif path[0] == "[]":
        known = {item.get("name"): item for item in old}
        for item in new:
            if item.get("name") in known:
                yield from _pairs(known[item.get("name")], item, path[1:])
    elif path[0] in old and path[0] in new:
        yield from _pairs(old[path[0]], new[path[0]], path[1:])


def _holds(rule: str, before: Any, after: Any) -> bool:
    if rule == "self == oldSelf":
        return bool(before == after)
    if rule == _NAMES:
        return [one.get("name") for one in before] == [one.get("name") for one in after]
    if match := _HAS.fullmatch(rule):
        return (match[1] in before) == (match[1] in after)
    if rule == KEEP_REPLICAS["rule"]:
        sizes = [spec["slices"].get("count") or spec["slices"].get("max") or 0 for spec in (before, after)]
        return "replicas" not in before.get("parallelism", {}) or sizes[0] == sizes[1]
    if match := _UNLESS_COMMAND.fullmatch(rule):
        return ("program" in after and "entrypoint" not in after["program"]) or match[1] in after
    assert "oldSelf" not in rule, f"a rule about what was before, in a form that is not known here: {rule}"
    return True


def _walk(path: Names, node: Node, *, required: bool) -> Iterator[Edit]:
    if path and path[-1] != "[]":
        yield from (Edit(path, operation) for operation in _operations(node))
        if not required:
            yield Edit(path, "delete")
    for name, child in node.get("properties", {}).items():
        yield from _walk((*path, name), child, required=name in node.get("required", ()))
    if "properties" in node.get("items", {}):
        yield from _walk((*path, "[]"), node["items"], required=True)


def _operations(node: Node) -> tuple[str, ...]:
    match node.get("type"):
        case "boolean":
            return ("toggle",)
        case "array":
            return ("push", "pop", "empty")
        case "object":
            return ("fill",) if "properties" in node else ("fill", "empty")
        case "string" if "enum" in node:
            return ("another",)
        case "string" if not _is_amount(node):
            return ("another",)
    return ("increase", "decrease")


def _is_amount(node: Node) -> bool:
    """Return whether a text is a number with a unit: a duration or a quantity."""
    return bool(re.match(node.get("pattern", "$"), "10m")) and not re.match(node["pattern"], "label")


def _sample(node: Node) -> Any:
    """Return a value that a schema allows by itself, as large as is harmless."""
    if "enum" in node:
        return node["enum"][0]
    match node.get("type"):
        case "boolean":
            return True
        case "integer" | "number":
            return min(node["maximum"], GREATEST)
        case "array":
            return [_sample(node["items"])]
        case "object" if "properties" in node:
            return {name: _sample(node["properties"][name]) for name in node.get("required", ())}
        case "object":
            return {"label": _sample(node["additionalProperties"])}
    return next(text for text in TEXTS if re.fullmatch(node.get("pattern", ".*"), text))


def _scaled(node: Node, value: Any, *, larger: bool) -> Any:
    """Return a number, a duration or a quantity by a quarter larger, or half as large."""
    if value is None:
        return _sample(node)
    if isinstance(value, float):
        return value * (1.25 if larger else 0.5)
    if isinstance(value, int):
        return value + max(1, value // 4) if larger else value // 2
    if value[-1:] in "hms" and node.get("type") == "string":
        return f"{_scaled(node, seconds(value), larger=larger)}s"
    number, unit = _AMOUNT.findall(value)[0]
    return f"{_scaled(node, int(number), larger=larger)}{unit}"


def _another(node: Node, value: Any) -> Any:
    if value is None:
        return _sample(node)
    if "enum" in node:
        return node["enum"][(node["enum"].index(value) + 1) % len(node["enum"])]
    return f"{value}x"


def _push(node: Node, value: Any) -> Any:
    """Return a list with one item more: like its last, and another."""
    if not value:
        return _sample(node)
    last = value[-1]
    if isinstance(last, dict):
        return [*value, {**last, **{key: f"{last[key]}x" for key in ("name", "key") if key in last}}]
    return [*value, last + 1 if isinstance(last, int) else f"{last}x"]


_OPERATIONS: dict[str, Change] = {
    "delete": lambda _, __: None,
    "toggle": lambda _, value: not value,
    "another": _another,
    "push": _push,
    "pop": lambda _, value: (value or [])[:-1],
    "empty": lambda node, _: [] if node["type"] == "array" else {},
    "fill": lambda node, value: value or _sample(node),
    "increase": lambda node, value: _scaled(node, value, larger=True),
    "decrease": lambda node, value: _scaled(node, value, larger=False),
}
