"""Rules about storage: the folders of checkpoints and compiled programs, and save intervals."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainingjob_api.base import MAX_PATH, MAX_SHORT_NAME, is_bucket, seconds
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import Volume
from trainingjob_operator.core.names import unused_name
from trainingjob_operator.core.planner.problem_messages import (
    has_no_effect,
    must_be_direct,
    must_be_unique,
)
from trainingjob_operator.core.validation.reserved_folders import is_below, is_reserved
from trainingjob_operator.core.validation.rule import Rule

MOUNTS = "runtime.volumes"


def check_checkpoint_uri(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.uri` must be a folder in a bucket, or below the mount path of a writable volume."""
    if is_bucket(spec.checkpoint.uri):
        yield from check_bucket("spec.checkpoint.uri", spec.checkpoint.uri)
        return
    uri = PurePosixPath(spec.checkpoint.uri)
    nearest = tuple(f"{mount.rstrip('/')}/{uri.name or 'run'}" for mount in writable_mounts(spec))
    yield from check_own_folder(spec, "spec.checkpoint.uri", uri, "checkpoints", nearest)


def check_own_folder(
    spec: TrainingJobSpec, path: str, uri: PurePosixPath, contents: str, nearest: tuple[str, ...]
) -> Iterator[Problem]:
    """Check that a folder of the job lies on a writable volume below the mount.

    `contents` is its noun in messages.
    """
    volume = find_volume(spec, uri)
    if ".." in uri.parts:
        yield Problem(path, str(uri), must_be_direct(uri))
    elif volume is None:
        message = f"{uri} must be on a volume of `spec.runtime.volumes`. Otherwise {contents} are lost with the pod."
        if not nearest:
            message += (
                " Mount a PersistentVolumeClaim that all hosts share, and write a folder below its mount path, or name "
                "a folder of a bucket."
            )
        yield Problem(path, str(uri), message, nearest)
    elif volume.read_only:
        yield Problem(
            path, str(uri), f"{uri} must be writable, but the volume `{volume.name}` is mounted read-only.", nearest
        )
    elif len(uri.parts) < 3 or uri == PurePosixPath(volume.mount_path):
        message = f"{uri} must be a folder below the mount path. The job must not share its folder."
        yield Problem(path, str(uri), message, (f"{volume.mount_path.rstrip('/')}/run",))


def check_bucket(path: str, uri: str) -> Iterator[Problem]:
    """Check that the folder of a bucket has names that the HTTP clients of object stores leave as they are."""
    scheme, _, rest = uri.partition("://")
    parts = rest.rstrip("/").split("/")
    if {".", ".."} & set(parts):
        direct = "/".join(part for part in parts if part not in (".", ".."))
        nearest = (f"{scheme}://{direct}",) if "/" in direct else ()
        message = f"{uri} must not contain `.` or `..` as the name of a folder. An object store has no parent folders."
        yield Problem(path, uri, message, nearest)


def check_volumes(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Names and mount paths of volumes must be unique, and mount paths must not overlap folders of the pod."""
    used_names = {volume.name for volume in spec.runtime.volumes}
    for number, volume in enumerate(spec.runtime.volumes):
        volume_path, earlier = f"spec.runtime.volumes[{number}]", spec.runtime.volumes[:number]
        nearest = (_free_mount(spec, volume.name),)
        mount = PurePosixPath(volume.mount_path)
        if volume.name in {earlier_volume.name for earlier_volume in earlier}:
            message = must_be_unique(volume.name, "an earlier volume")
            free = unused_name(volume.name, used_names, MAX_SHORT_NAME)
            used_names.add(free)
            yield Problem(f"{volume_path}.name", volume.name, message, (free,))
        if ".." in mount.parts:
            yield Problem(f"{volume_path}.mountPath", volume.mount_path, must_be_direct(mount))
        elif is_reserved(volume.mount_path):
            message = f"{mount} must not be, contain or lie in a folder that the pod itself needs."
            yield Problem(f"{volume_path}.mountPath", volume.mount_path, message, nearest)
        elif mount in {PurePosixPath(earlier_volume.mount_path) for earlier_volume in earlier}:
            message = must_be_unique(str(mount), "an earlier volume", "mount path")
            yield Problem(f"{volume_path}.mountPath", volume.mount_path, message, nearest)


def check_compile_cache(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`runtime.compileCache.path` must be on a writable volume."""
    path, writable = spec.runtime.compile_cache.path, writable_mounts(spec)
    if path is None:
        return
    if ".." in PurePosixPath(path).parts or not any(is_below(path, mount) for mount in writable):
        message = (
            f"{path} must be on a writable volume of `spec.runtime.volumes`. Without a path, the pod uses a volume "
            "that is deleted with it."
        )
        nearest = tuple(f"{mount.rstrip('/')}/compile-cache" for mount in writable)
        yield Problem("spec.runtime.compileCache.path", path, message, nearest)


def check_save_interval(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.save.every` must be greater than 0s."""
    every = spec.checkpoint.save.every
    if every is not None and seconds(every) == 0:
        message = f"{every} must be greater than 0s. Otherwise each step would wait for the previous save."
        yield Problem("spec.checkpoint.save.every", every, message, ("10m",))


def warn_of_unused_cache_path(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`runtime.compileCache.path` has no effect while the cache is off."""
    cache = spec.runtime.compile_cache
    if cache.path is not None and not cache.enabled:
        message = has_no_effect("the compile cache is off", cache.path)
        yield Problem(
            "spec.runtime.compileCache.path", cache.path, message, ("spec.runtime.compileCache.enabled: true",)
        )


def folders_overlap(folder: PurePosixPath, other: PurePosixPath) -> bool:
    """Return whether one folder contains the other. Those of buckets begin with the scheme and the bucket."""
    return folder.is_relative_to(other) or other.is_relative_to(folder)


def find_volume(spec: TrainingJobSpec, path: PurePosixPath) -> Volume | None:  # None: on no volume
    """Return the volume that a path lies on."""
    mounts = [volume for volume in spec.runtime.volumes if path.is_relative_to(volume.mount_path)]
    return max(mounts, key=lambda volume: len(PurePosixPath(volume.mount_path).parts), default=None)


def writable_mounts(spec: TrainingJobSpec) -> list[str]:
    """Return the mount paths of writable volumes, whose files outlive the pod."""
    return [
        volume.mount_path for volume in spec.runtime.volumes if not (volume.read_only or is_reserved(volume.mount_path))
    ]


def _free_mount(spec: TrainingJobSpec, name: str) -> str:
    """Return an unused mount path for a volume."""
    used_paths = {str(PurePosixPath(volume.mount_path)) for volume in spec.runtime.volumes}
    path = f"/mnt/{name}"
    return unused_name(path, used_paths, MAX_PATH) if path in used_paths else path


RULES = (
    Rule(("checkpoint.uri", MOUNTS), check_checkpoint_uri),
    Rule((MOUNTS,), check_volumes),
    Rule(("runtime.compileCache.path", MOUNTS), check_compile_cache),
    Rule(("checkpoint.save.every",), check_save_interval),
)
WARNINGS = (Rule(("runtime.compileCache",), warn_of_unused_cache_path),)
