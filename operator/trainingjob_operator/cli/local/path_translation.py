"""Translation of a pod's paths to local paths, by the folder that backs each mount. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

type Mounts = Mapping[str, Path]
"""The local folder behind each mount path."""


def move_path(path: str, mounts: Mounts) -> str:
    """Return the path below the folder of the innermost mount that contains it. Other paths stay unchanged."""
    for mount in sorted(mounts, key=len, reverse=True):
        if path == mount or path.startswith(mount.rstrip("/") + "/"):
            return str(mounts[mount]) + path[len(mount.rstrip("/")) :]
    return path


def move_paths(value: Any, mounts: Mounts) -> Any:
    """Return a JSON value with every path translated."""
    match value:
        case str():
            return move_path(value, mounts)
        case list():
            return [move_paths(item, mounts) for item in value]
        case dict():
            return {key: move_paths(item, mounts) for key, item in value.items()}
        case _:
            return value
