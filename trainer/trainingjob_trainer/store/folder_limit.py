"""A limit for the bytes of a folder of this host: files that were not used for longest make way for others."""

import logging
import os
import re
from contextlib import suppress
from pathlib import Path

LOG = logging.getLogger(__name__)
MAX_FOLDER_BYTES = 4 << 30
"""Maximum bytes of the files: half the volume of a pod, whose excess evicts it."""


def mark_used(folder: str, name: str) -> None:
    """Make a file the one that was used last. A read-only folder stays as it is."""
    with suppress(OSError):
        os.utime(Path(folder, name), follow_symlinks=False)


def delete_least_recent(folder: str, pattern: re.Pattern[str], needed_bytes: int) -> None:
    """Delete files that were not used for longest, until `needed_bytes` fit into the limit.

    `pattern` matches the names of the files. Those of other jobs, which may share the folder, are among them.
    """
    try:
        entries = [entry for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]
        files = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
        total = needed_bytes + sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total <= MAX_FOLDER_BYTES:
                return
            os.unlink(path)  # noqa: PTH108  # a name of `scandir`
            total -= status.st_size
    except OSError as error:  # it is missing, read-only, or another process cleans it up
        LOG.debug("cannot delete old files folder=%s error=%s", folder, error)
