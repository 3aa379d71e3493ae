"""The folder of JAX's own cache of compiled programs on this host: the names of its entries, and which are complete.

The format is that of `jax/_src/lru_cache.py` of 0.12: one file an entry, named by the module and a hash of all that
shapes the program. JAX writes an entry in place, so a new one may be incomplete.
"""

import os
import re
import time

ENTRY_NAME = re.compile(r"[\w.<>-]{1,120}-[0-9a-f]{64}-cache", re.ASCII)
"""File names of entries. Entries of longer names stay on their host."""
COMPLETE_SECONDS = 5.0
"""Seconds since the last write after which an entry counts as complete. JAX writes one at once."""


def list_complete(folder: str) -> frozenset[str]:
    """Return the names of the complete entries of a folder; none if the folder is missing.

    Raises:
        OSError: the folder cannot be read.
    """
    newest = time.time() - COMPLETE_SECONDS
    try:
        with os.scandir(folder) as entries:
            files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if _is_entry(entry)]
    except FileNotFoundError:  # also an entry that another process has deleted meanwhile: the next call finds the rest
        return frozenset()
    return frozenset(name for name, status in files if status.st_size and status.st_mtime <= newest)


def _is_entry(entry: os.DirEntry[str]) -> bool:
    return ENTRY_NAME.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)
