"""Folders of a pod that a job must not mount over, because the agent needs their contents.

A rule about specs rejects such a mount with a message. The check of rendered pods rejects it again.
"""

from functools import lru_cache
from pathlib import PurePosixPath

TMP = "/tmp"  # noqa: S108  # a folder inside the pod
RESERVED_FOLDERS = (
    "/dev",
    "/etc",
    "/opt/venv",
    "/proc",
    "/sys",
    TMP,
    "/usr",
    "/var/cache/trainingjob",
    "/var/run/secrets",
)


def is_below(path: str, mount: str) -> bool:
    """Return whether a path is a mount or lies below it."""
    return PurePosixPath(path).is_relative_to(mount)


@lru_cache(maxsize=1024)  # several rules check each volume, and most jobs use the same mounts
def is_reserved(folder: str) -> bool:
    """Return whether a mount would hide a reserved folder or lie in one. Folders below /tmp are allowed."""
    mount = PurePosixPath(folder)
    hides_reserved = any(PurePosixPath(reserved).is_relative_to(mount) for reserved in RESERVED_FOLDERS)
    return hides_reserved or any(mount.is_relative_to(reserved) for reserved in RESERVED_FOLDERS if reserved != TMP)
