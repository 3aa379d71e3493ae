"""YAML that commands print, also with comments above its fields."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

COMMENT_WIDTH = 110
_KEY = re.compile(r"( *)([\w-]+):")


def to_yaml(*documents: Mapping[str, Any]) -> str:
    """Return objects as YAML documents, with keys in insertion order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def to_commented_lines(document: Mapping[str, Any], comments: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of an object, with comments above fields: texts by path, with dots between its parts.

    A path has no index: fields in lists have no comments.
    """
    path: list[str] = []
    for line in to_yaml(document).splitlines():
        match = _KEY.match(line)
        if match:
            indent, key = match.groups()
            path = [*path[: len(indent) // 2], key]
            yield from (f"{indent}{comment}" for comment in to_comment(comments.get(".".join(path), "")))
        yield line


def to_comment(text: str) -> list[str]:
    """Return a text as the lines of a comment; none for an empty text."""
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT_WIDTH)]


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as a block, so that the config in a ConfigMap is readable. Writes no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every value in full, without anchors."""
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _represent_text)
