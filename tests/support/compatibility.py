"""The fields of the API with all that users rely on, and which changes of them break a job that was written before."""

import functools
import json
from collections.abc import Iterator
from typing import Any

from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.schema import spec_schema, status_schema

type Facts = dict[str, Any]
"""What holds of one field: its type, whether it must be written, whether it is fixed, its default and its bounds."""

LOWER = ("minimum", "minLength", "minItems")
UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
SAME = {
    "type": "another type",
    "default": "another default: the same file then means something else",
    "pattern": "another pattern: what matched may no longer",
    "format": "another format",
    "x-kubernetes-list-type": "another way to merge the list",
    "x-kubernetes-int-or-string": "another type",
}
KEPT = (*SAME, "enum", *LOWER, "exclusiveMinimum", *UPPER, "exclusiveMaximum")


@functools.cache
def list_facts() -> dict[str, Facts]:
    """Return the facts of every field, by path, in the order of the schema. They are shared: change a copy."""
    fixed = {
        ".".join(("spec", *path)).replace(".[]", "[]")
        for path, rules in SPEC_RULES.items()
        if {"self == oldSelf"} & rule_texts(rules)
    }
    rows = {**dict(_walk("spec", spec_schema())), **dict(_walk("status", status_schema()))}
    for path, facts in rows.items():
        if any(path == place or path.startswith((f"{place}.", f"{place}[")) for place in fixed):
            facts["fixed"] = True
    return rows


def rule_texts(rules: Any) -> set[str]:
    return {rule["rule"] for rule in rules}


def _walk(path: str, node: Facts) -> Iterator[tuple[str, Facts]]:
    item = node.get("items") or node.get("additionalProperties") or {}
    for inside, place in ((node, path), (item, f"{path}[]")):
        for name, child in inside.get("properties", {}).items():
            facts = {key: child[key] for key in KEPT if key in child}
            yield f"{place}.{name}", facts | ({"required": True} if name in inside.get("required", ()) else {})
            yield from _walk(f"{place}.{name}", child)
    if item and "properties" not in item:
        yield f"{path}[]", {key: item[key] for key in KEPT if key in item}


def write(rows: dict[str, Facts]) -> str:
    """Return the text of the golden file: a field a line."""
    return "".join(f"{path} {json.dumps(facts)}\n" for path, facts in rows.items())


def read(text: str) -> dict[str, Facts]:
    """Return what `write` wrote."""
    parts = (line.partition(" ") for line in text.splitlines())
    return {path: json.loads(facts) for path, _, facts in parts}


def find_breaks(before: dict[str, Facts], after: dict[str, Facts]) -> list[str]:
    """Return, a line each, the changes that break jobs, or readers of a status, that were written before."""
    lines = [f"{path}: removed" for path in before if path not in after]
    lines += [
        f"{path}: new and required"
        for path, facts in after.items()
        if path not in before
        and facts.get("required")
        and path.rpartition(".")[0].removesuffix("[]") in {*before, "spec"}
    ]
    for path in before.keys() & after.keys():
        lines += [f"{path}: {why}" for why in _breaks(path, before[path], after[path])]
    return sorted(lines)


def find_rejected_writes(before: dict[str, Facts], after: dict[str, Facts]) -> list[str]:
    """Return, a line each, the changes by which an older operator can no longer write its status.

    During a rolling upgrade the API server has the new schema, while an operator of the version before still leads.
    """
    narrower = [
        f"{path}: {why}" for path in before.keys() & after.keys() for why in _narrows(before[path], after[path])
    ]
    return sorted({*find_breaks(before, after), *narrower})


def _is_kept(before: Any, after: Any) -> bool:
    """Return whether a fact is unchanged; the default of a section may have more fields than before."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(_is_kept(value, after.get(key)) for key, value in before.items())
    return bool(before == after)


def _breaks(path: str, before: Facts, after: Facts) -> Iterator[str]:
    yield from (why for key, why in SAME.items() if not _is_kept(before.get(key), after.get(key)))
    if path.startswith("status"):
        return  # what bounds the operator alone breaks no reader
    if after.get("fixed") and not before.get("fixed"):
        yield "can no longer change while a job lives"
    yield from _narrows(before, after)


def _narrows(before: Facts, after: Facts) -> Iterator[str]:
    if after.get("required") and not before.get("required"):
        yield "must be written now"
    lost = set(before.get("enum", ())) - set(after.get("enum", before.get("enum", ())))
    if lost or ("enum" in after and "enum" not in before):
        yield f"fewer choices: {', '.join(sorted(map(str, lost))) or 'they were free'}"
    for keys, is_narrower in ((LOWER, lambda old, new: new > old), (UPPER, lambda old, new: new < old)):
        for key in keys:
            new, old = after.get(key), before.get(key)
            if new is not None and (old is None or is_narrower(old, new)):
                yield f"narrower: {key} {new}, was {'unbounded' if old is None else old}"
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if after.get(key) and not before.get(key):
            yield f"narrower: {key}"
