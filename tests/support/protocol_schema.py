"""What the schemas of protocol models allow: their leaves, a sample with every field set, and values at the bounds."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

type Node = dict[str, Any]
type Path = tuple[str | int, ...]


class Schema:
    """The JSON schema of a model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.root = model.model_json_schema(by_alias=True)
        self.title = model.__name__

    def resolve(self, node: Node) -> Node:
        """Return the type of a node, without None if it is optional."""
        if "$ref" in node:
            return self.resolve(self.root["$defs"][node["$ref"].rpartition("/")[2]])
        for key in ("anyOf", "oneOf"):
            if key in node:
                return self.resolve(next(one for one in node[key] if one.get("type") != "null"))
        return node

    def walk(self, node: Node | None = None, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """Yield every value that a document may hold, with its path; of a list or a map one item."""
        node = self.resolve(self.root if node is None else node)
        yield path, node
        for name, child in node.get("properties", {}).items():
            yield from self.walk(child, (*path, name))
        if node.get("type") == "array":
            yield from self.walk(node["items"], (*path, 0))
        if isinstance(node.get("additionalProperties"), dict):
            yield from self.walk(node["additionalProperties"], (*path, self.key_of(node)))

    def key_of(self, node: Node) -> str:
        """Return a key that a map may have."""
        return str(next(iter(self.resolve(node["propertyNames"]).get("enum", ["key"]))))

    def sample(self, node: Node | None = None) -> Any:
        """Return a document in which every field is set."""
        node = self.resolve(self.root if node is None else node)
        match node:
            case {"enum": [first, *_]} | {"const": first}:
                return first
            case {"type": "object", "properties": properties}:
                return {name: self.sample(child) for name, child in properties.items()}
            case {"type": "object", "additionalProperties": dict(values)}:
                return {self.key_of(node): self.sample(values)}
            case {"type": "array"}:
                return [self.sample(node["items"])]
            case {"type": "string"}:
                return "x"
            case {"type": "boolean"}:
                return True
        return max(node.get("minimum", node.get("exclusiveMinimum", 0)), 1)


def put(document: Any, path: Path, value: object) -> Any:
    """Return a document with another value at a path."""
    if not path:
        return value
    head, *rest = path
    if isinstance(document, list):
        return [put(item, tuple(rest), value) if index == head else item for index, item in enumerate(document)]
    return {**document, head: put(document[head], tuple(rest), value)}
