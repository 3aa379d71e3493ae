"""YAML that commands print."""

from collections.abc import Mapping
from typing import Any

import yaml


def to_yaml(*documents: Mapping[str, Any]) -> str:
    """Return objects as YAML documents, with keys in insertion order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as a block, so that the config in a ConfigMap is readable. Writes no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every value in full, without anchors."""
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _represent_text)
