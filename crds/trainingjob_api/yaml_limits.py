"""Size limits for YAML documents, because a few hundred bytes of aliases can expand beyond any memory.

kubectl and the API server reject such documents too: kubectl rejects recursive or excessive aliases, the API server a
request above 3 MiB.
"""

from typing import Any

import yaml

MAX_BYTES = 3 * 2**20
"""Request size limit of the API server."""
MAX_DEPTH = 100
"""Nesting depth of maps and lists. A TrainingJob nests fewer than ten levels."""

type ExpandedSize = tuple[int, int]
"""Characters of a node with all its aliases expanded, and its nesting depth."""


YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""All exceptions of a loader for unreadable text. Besides its own errors it raises others, e.g. for `!!bool maybe`."""


class BoundedLoader(yaml.SafeLoader):
    """YAML loader that rejects documents that are too large or too deep."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Check the size of a document before constructing its values."""
        check_limits(node)
        return super().construct_document(node)


def check_limits(node: yaml.Node) -> None:
    """Check the size of a document before its values are constructed.

    Raises:
        yaml.constructor.ConstructorError: it is too large or too deep, or it contains itself.
        RecursionError: it is deeper than Python can follow.
    """
    _expanded_size(node, {})


def _expanded_size(node: yaml.Node, known: dict[int, ExpandedSize | None]) -> ExpandedSize:
    if id(node) in known:
        measure = known[id(node)]
        if measure is None:
            raise _limit_error(node, "an anchor must not contain an alias of itself")
        return measure
    if not isinstance(node, yaml.CollectionNode):
        return len(str(node.value)) + 1, 0
    known[id(node)] = None  # marks a node on the current path, to detect cycles
    size, depth = 2, 0
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            more, deeper = _expanded_size(part, known)
            size, depth = size + more, max(depth, deeper)
    depth += 1
    if size > MAX_BYTES:
        raise _limit_error(
            node, "with expanded aliases, the document must not be larger than 3 MiB, the limit of a request"
        )
    if depth > MAX_DEPTH:
        raise _limit_error(node, f"maps and lists must not be nested more than {MAX_DEPTH} levels deep")
    known[id(node)] = size, depth
    return size, depth


def _limit_error(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
