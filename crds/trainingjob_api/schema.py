"""The CustomResourceDefinition, generated from the models: what the API server validates and explains.

Pydantic's JSON schema is rewritten as a structural schema: no references, no `anyOf` with null, bounds in the notation
of OpenAPI 3.0. Objects of the spec preserve unknown fields, because the API server would otherwise drop them silently;
the webhook and the condition report them by name. Defaults are written into the spec, so that no later version of this
file changes a job. Those of the model are in its descriptions alone, and never change.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from trainingjob_api.base import Strict
from trainingjob_api.cel import ROOT_RULES, SPEC_RULES
from trainingjob_api.fields import fields_of
from trainingjob_api.spec.job import GROUP, KIND, PLURAL, VERSION, TrainingJobSpec
from trainingjob_api.status.training_job_status import TrainingJobStatus

type Schema = dict[str, Any]

_COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("Status", "string", ".status.phase", 0),
    ("Slices", "string", ".status.display.slices", 0),
    ("Step", "string", ".status.display.step", 0),
    ("Loss", "string", ".status.display.loss", 0),
    ("Goodput", "string", ".status.display.goodput", 0),
    ("Restarts", "integer", ".status.restarts.total", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Mesh", "string", ".status.display.mesh", 1),
    ("Tokens/s", "string", ".status.display.tokensPerSecond", 1),
    ("ETA", "string", ".status.display.eta", 1),
    ("Checkpoint", "string", ".status.display.checkpoint", 1),
    ("Reason", "string", ".status.display.reason", 1),
)
"""Name, type, path and priority; columns of priority 1 appear only with `-o wide`."""


def make_crd() -> Schema:
    """Return the manifest of the CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["tj"],
                "categories": [KIND.lower()],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": _object_schema()},
                }
            ],
        },
    }


def spec_schema() -> Schema:
    """Return the structural schema of the spec, without its CEL rules."""
    schema = _json_schema(TrainingJobSpec)
    return _structural(schema, schema["$defs"], keep_unknown=True)


def status_schema() -> Schema:
    """Return the structural schema of the status. It has no defaults: the operator writes every field."""
    schema = _json_schema(TrainingJobStatus)
    return _structural(schema, schema["$defs"], keep_unknown=False)


@cache
def _json_schema(model: type[BaseModel]) -> Mapping[str, Any]:
    return model.model_json_schema(by_alias=True)


def _column(name: str, kind: str, path: str, priority: int) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _object_schema() -> Schema:
    spec = spec_schema()
    _drop_defaults(spec, TrainingJobSpec)
    for path, rules in SPEC_RULES.items():
        target = spec
        for name in path:
            target = target["items"] if name == "[]" else target["properties"][name]
        target["x-kubernetes-validations"] = list(rules)
    return {
        "type": "object",
        "description": "A whole training config in one object: what to train, on which slices, from which data.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of this object's schema."},
            "kind": {"type": "string", "description": f"The kind of this object: {KIND}."},
            "metadata": {"type": "object"},  # the API server adds its description, and allows nothing else here
            "spec": spec,
            "status": status_schema(),
        },
        "x-kubernetes-validations": list(ROOT_RULES),
    }


def _drop_defaults(node: Schema, model: type[Strict]) -> None:
    """Describe the defaults that the API server does not write in objects, instead of declaring them."""
    for field in fields_of(model):
        child = node["properties"][field.name]
        if not field.stores_defaults:
            _describe_defaults(child)
        elif field.model:
            _drop_defaults(child["items"] if field.is_list else child, field.model)


def _describe_defaults(node: Schema) -> None:
    """Replace the defaults of a structural schema by a sentence in the descriptions."""
    default = node.pop("default", None)
    if default is not None and node.get("type") != "object":
        text = f"{default:g}" if isinstance(default, float) else json.dumps(default).strip('"')
        node["description"] += f" Unset: {text}."
    for child in (*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])):
        _describe_defaults(child)


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any], *, keep_unknown: bool) -> Schema:
    """Return a node of a JSON schema, and all nodes below it, as a structural schema."""
    node = _resolve(node, definitions)

    def inner(child: Mapping[str, Any]) -> Schema:
        return _structural(child, definitions, keep_unknown=keep_unknown)

    schema: Schema = {key: node[key] for key in _KEPT if key in node} | _bounds(node)
    if keep_unknown and node.get("default") is not None:
        schema["default"] = _without_nulls(node["default"])
    if node.get("x-kubernetes-int-or-string"):
        schema.pop("type")
    if node.get("type") == "array":
        schema["items"] = inner(node["items"])
        schema.setdefault("x-kubernetes-list-type", "atomic")
    if values := _values(node):
        schema["additionalProperties"] = inner(values)
    if "properties" in node:
        schema["properties"] = {name: inner(child) for name, child in node["properties"].items()}
        schema |= {"x-kubernetes-preserve-unknown-fields": True} if keep_unknown else {}
    return schema


_KEPT = (
    "type",
    "description",
    "enum",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node with its reference resolved and its null removed; the node's own keys take precedence.

    Properties of the node are those of former names, in addition to the ones that it refers to.
    """
    if "$ref" in node:
        only: Mapping[str, Any] = definitions[node["$ref"].rpartition("/")[2]]
    elif "anyOf" in node:
        (only,) = (choice for choice in node["anyOf"] if choice.get("type") != "null")
    else:
        return node
    found = _resolve(only, definitions)
    both = {"properties": {**found["properties"], **node["properties"]}} if "properties" in node else {}
    return {**found, **node, **both}


def _without_nulls(value: Any) -> Any:
    """Return a default without unset fields."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _bounds(node: Mapping[str, Any]) -> Schema:
    """Return bounds in OpenAPI 3.0 notation: a constant as an enum, and exclusive limits as flags."""
    bounds: Schema = {"enum": [node["const"]]} if "const" in node else {}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            bounds |= {bound: node[exclusive], exclusive: True}
    return bounds


def _values(node: Mapping[str, Any]) -> Mapping[str, Any] | None:  # None: not a map
    """Return the schema of a map's values."""
    patterns = node.get("patternProperties")
    if patterns:
        (values,) = patterns.values()  # the API server cannot check the keys; the webhook does
        return dict(values)
    values = node.get("additionalProperties")
    return values if isinstance(values, dict) else None
