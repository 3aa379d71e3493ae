"""A spec moved to this machine: its paths, its slices, and without the fields that only a cluster can honour.

Pure. Every path below a volume's mount path moves to the folder that stands for the volume; all other paths are read as
they stand. Mesh, batch, data and numbers stay what they are on a cluster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainingjob_api.job import TrainingJobSpec
from trainingjob_operator.cli.local.container import move_path

_CLUSTER_ONLY = ("scheduling", "suspend", "ttlSecondsAfterFinished")
_CLUSTER_ONLY_RUNTIME = ("image", "imagePullPolicy", "imagePullSecrets", "serviceAccountName", "resources")


def localise(spec: TrainingJobSpec, folders: Mapping[str, Path], cache: Path, num_slices: int | None) -> dict[str, Any]:
    """Return the raw spec of a local run.

    `folders` holds one folder for each volume, by name; `cache` keeps compiled programs that would live in the pods
    otherwise. `num_slices` is the most slices to start; None: as many as the
    spec allows.
    """
    mounts = {volume.mount_path: folders[volume.name] for volume in spec.runtime.volumes}
    moved: dict[str, Any] = _move(spec.model_dump(mode="json", by_alias=True, exclude_none=True), mounts)
    for name in _CLUSTER_ONLY:
        moved.pop(name, None)
    for name in _CLUSTER_ONLY_RUNTIME:
        moved["runtime"].pop(name, None)
    moved["runtime"]["env"] = [variable for variable in moved["runtime"]["env"] if "value" in variable]
    moved["runtime"]["compileCache"].setdefault("path", str(cache))
    if num_slices is not None:
        moved["slices"] |= _limit(spec, num_slices)
    return moved


def variables_from_objects(spec: TrainingJobSpec) -> tuple[str, ...]:
    """Return the environment variables that a cluster takes from Secrets and ConfigMaps: the shell has to set them."""
    return tuple(variable.name for variable in spec.runtime.env if variable.value is None)


def _move(value: Any, mounts: Mapping[str, Path]) -> Any:
    match value:
        case str():
            return move_path(value, mounts)
        case list():
            return [_move(item, mounts) for item in value]
        case dict():
            return {key: _move(item, mounts) for key, item in value.items()}
        case _:
            return value


def _limit(spec: TrainingJobSpec, num_slices: int) -> dict[str, int]:
    if spec.slices.count is not None:
        return {"count": num_slices}
    return {"min": min(spec.slices.fewest, num_slices), "max": num_slices}
