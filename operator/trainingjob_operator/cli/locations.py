"""Folders of this machine and of buckets, as a user names them in arguments."""

from pathlib import Path

from trainingjob_api.base import is_bucket


def absolute_location(location: str) -> str:
    """Return the absolute path of a folder of this machine, or the URI of a folder of a bucket."""
    return location if is_bucket(location) else str(Path(location).absolute())
