"""Values that the chart's templates need: sections of values.yaml, and values whose default is not empty."""

from collections.abc import Iterator
from typing import Any

FREE_FORM = frozenset(
    ("resources", "webhook.resources", "metrics.dashboard.labels", "podSecurityContext", "containerSecurityContext")
)
"""Sections whose keys belong to Kubernetes or Grafana. Users may set each of these keys to null."""


def list_required(values: dict[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the paths of values that must be set, and of sections with none. Other missing values count as empty."""
    for key, value in values.items():
        path = f"{parent}{key}"
        if isinstance(value, dict) and value and path not in FREE_FORM:
            yield from list(list_required(value, f"{path}.")) or [path]
        elif value not in ("", [], {}):
            yield path


def render_required(values: dict[str, Any]) -> str:
    """Return the text of the chart's list, which Helm can read: a template has no access to values.yaml."""
    return "".join(f"{path}\n" for path in list_required(values))
