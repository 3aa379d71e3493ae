"""Folders of a pod that are not a job's to mount: a volume there would hide what the agent stands on.

The rule about specs refuses such a mount in words; the check of rendered pods refuses it once more.
"""

from functools import lru_cache
from pathlib import PurePosixPath

TMP = "/tmp"  # noqa: S108  # a folder inside the pod
RESERVED = ("/dev", "/etc", "/opt/venv", "/proc", "/sys", TMP, "/usr", "/var/cache/trainingjob", "/var/run/secrets")


def is_below(path: str, mount: str) -> bool:
    """Return whether a path is a mount or lies below it."""
    return PurePosixPath(path).is_relative_to(mount)


@lru_cache(maxsize=1024)  # several rules ask about each volume, and most jobs mount theirs alike
def is_reserved(folder: str) -> bool:
    """Return whether a mount would hide a folder of the pod or lie in one; folders of one's own in /tmp are fine."""
    mount = PurePosixPath(folder)
    hides = any(PurePosixPath(reserved).is_relative_to(mount) for reserved in RESERVED)
    return hides or any(mount.is_relative_to(reserved) for reserved in RESERVED if reserved != TMP)
