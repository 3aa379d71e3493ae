"""Paths of a pod on this machine: what is below a mount path is below the folder that stands for the mount. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

type Mounts = Mapping[str, Path]
"""The folder behind each mount path."""


def move_path(path: str, mounts: Mounts) -> str:
    """Return the path below the folder of the innermost mount that holds it; a path outside all mounts stays."""
    for mount in sorted(mounts, key=len, reverse=True):
        if path == mount or path.startswith(mount.rstrip("/") + "/"):
            return str(mounts[mount]) + path[len(mount.rstrip("/")) :]
    return path


def move_paths(value: Any, mounts: Mounts) -> Any:
    """Return a JSON value in which every path is moved."""
    match value:
        case str():
            return move_path(value, mounts)
        case list():
            return [move_paths(item, mounts) for item in value]
        case dict():
            return {key: move_paths(item, mounts) for key, item in value.items()}
        case _:
            return value
