"""How large YAML may be: a few hundred bytes of aliases can stand for more than any memory holds.

kubectl and the API server refuse such documents too: kubectl one that refers to itself or to aliases too often, the API
server one of more than 3 MiB.
"""

from typing import Any

import yaml

MAX_BYTES = 3 * 2**20
"""The most that the API server takes in one request."""
MAX_DEPTH = 100
"""Levels of maps and lists in each other. A TrainingJob has fewer than ten."""

type Measure = tuple[int, int]
"""The characters of a node with all its aliases written out, and its levels."""


UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""All that a loader raises for text that it cannot read; its own errors are not all, as for `!!bool maybe`."""


class BoundedLoader(yaml.SafeLoader):
    """Loads documents that are neither too large nor too deep."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Check the size of a document before its values are made."""
        check_limits(node)
        return super().construct_document(node)


def check_limits(node: yaml.Node) -> None:
    """Check the size of a document before its values are made.

    Raises:
        yaml.constructor.ConstructorError: it is too large or too deep, or it contains itself.
        RecursionError: it is deeper than Python can follow.
    """
    _measure(node, {})


def _measure(node: yaml.Node, known: dict[int, Measure | None]) -> Measure:
    if id(node) in known:
        measure = known[id(node)]
        if measure is None:
            raise _refuse(node, "an anchor stands for something that contains the anchor itself")
        return measure
    if not isinstance(node, yaml.CollectionNode):
        return len(str(node.value)) + 1, 0
    known[id(node)] = None  # it is being measured
    size, depth = 2, 0
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            more, deeper = _measure(part, known)
            size, depth = size + more, max(depth, deeper)
    depth += 1
    if size > MAX_BYTES:
        raise _refuse(node, "with its aliases written out, the document is larger than the 3 MiB of a request")
    if depth > MAX_DEPTH:
        raise _refuse(node, f"maps and lists stand in each other more than {MAX_DEPTH} levels deep")
    known[id(node)] = size, depth
    return size, depth


def _refuse(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
