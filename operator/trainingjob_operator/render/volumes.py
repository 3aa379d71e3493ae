"""Volumes of a training pod. The root file system is read-only: every writable folder is a volume listed here."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_api.spec.checkpoint import MEMORY
from trainingjob_api.spec.runtime import Runtime, Volume
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.planner.plan import SliceShape, SnapshotPlan
from trainingjob_operator.core.validation.quantity import format_bytes

CONFIG_FOLDER = "/etc/trainingjob"
TOKEN_FOLDER = "/var/run/secrets/trainingjob.dev"  # noqa: S105  # a folder, not a secret
TOKEN_FILE = "token"  # noqa: S105  # a file name, not a secret
TMP_FOLDER = "/tmp"  # noqa: S108  # an emptyDir, private to the pod
SHM_FOLDER = "/dev/shm"  # noqa: S108
CACHE_FOLDER = "/var/cache/trainingjob"
SNAPSHOT_FOLDER = "/var/cache/trainingjob/snapshots"
TOKEN_LIFETIME_SECONDS = 3600
"""Lifetime of the token. The kubelet renews the token earlier, and agents read the file for each report."""
DISK_SIZE_LIMIT = "8Gi"
"""Limit of the node disk space of each `emptyDir` on disk."""


@dataclass(frozen=True)
class MountedVolume:
    """A volume of the pod and its mount in the container."""

    volume: Manifest
    mount: Manifest
    memory_bytes: int = 0
    """Maximum memory use of the volume, which counts towards the container's memory limit."""
    disk_bytes: int = 0
    """Disk space that the node must have for the volume."""


def pod_volumes(
    config_maps: Sequence[str], runtime: Runtime, shape: SliceShape, snapshots: SnapshotPlan | None = None
) -> list[MountedVolume]:
    """Return all volumes of a host's pod, the job's own claims last. `config_maps` share the folder of the config."""
    return [
        *_basic_volumes(config_maps),
        MountedVolume(
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(shape.shm_bytes)}},
            {"name": "shm", "mountPath": SHM_FOLDER},
            memory_bytes=shape.shm_bytes,
        ),
        *([_compile_cache()] if has_cache_volume(runtime) else []),
        *([_snapshots(snapshots)] if snapshots else []),
        *(_claim(volume) for volume in runtime.volumes),
    ]


def preparation_volumes(config_maps: Sequence[str], runtime: Runtime) -> list[MountedVolume]:
    """Return all volumes of a pod that tokenizes text, the job's own claims last."""
    return [*_basic_volumes(config_maps), *(_claim(volume) for volume in runtime.volumes)]


def _basic_volumes(config_maps: Sequence[str]) -> list[MountedVolume]:
    """Return the volumes that every pod of a job has."""
    return [
        MountedVolume(
            {"name": "config", "projected": {"sources": [{"configMap": {"name": name}} for name in config_maps]}},
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        ),
        MountedVolume(
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": _token()}]}},
            {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
        ),
        MountedVolume(
            {"name": "tmp", "emptyDir": {"sizeLimit": DISK_SIZE_LIMIT}},
            {"name": "tmp", "mountPath": TMP_FOLDER},
        ),
    ]


def has_cache_volume(runtime: Runtime) -> bool:
    """Return whether the compile cache is a volume of the pod, not a folder that the job sets."""
    return runtime.compile_cache.enabled and runtime.compile_cache.path is None


def cache_folder(runtime: Runtime) -> str:
    """Return the folder of the compile cache. Empty: the cache is disabled."""
    if not runtime.compile_cache.enabled:
        return ""
    return runtime.compile_cache.path or CACHE_FOLDER


def _token() -> Manifest:
    return {"audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_LIFETIME_SECONDS, "path": TOKEN_FILE}


def _compile_cache() -> MountedVolume:
    # The volume outlives the container, not the pod: a restarted trainer on this host reuses its compiled programs.
    return MountedVolume(
        {"name": "compile-cache", "emptyDir": {"sizeLimit": DISK_SIZE_LIMIT}},
        {"name": "compile-cache", "mountPath": CACHE_FOLDER},
    )


def _snapshots(snapshots: SnapshotPlan) -> MountedVolume:
    # A volume that outlives the trainer process and its container: the next world resumes from the snapshot.
    in_memory = snapshots.medium == MEMORY
    size = {"sizeLimit": format_bytes(snapshots.volume_bytes)}
    return MountedVolume(
        {"name": "snapshots", "emptyDir": {"medium": "Memory", **size} if in_memory else size},
        {"name": "snapshots", "mountPath": SNAPSHOT_FOLDER},
        memory_bytes=snapshots.memory_bytes,
        disk_bytes=0 if in_memory else snapshots.volume_bytes,
    )


def _claim(volume: Volume) -> MountedVolume:
    name = f"volume-{volume.name}"  # the prefix avoids collisions with the operator's own volumes
    return MountedVolume(
        {"name": name, "persistentVolumeClaim": {"claimName": volume.claim_name}},
        {"name": name, "mountPath": volume.mount_path, **({"readOnly": True} if volume.read_only else {})},
    )
