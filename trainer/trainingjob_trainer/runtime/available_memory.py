"""Memory that is still available: in the container, and on its machine."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")
CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Files of cgroup v2 and v1: limit, usage, and statistics, with the name of the page cache that can be reclaimed."""


def available_memory(cgroup: Path = CGROUP, proc: Path = PROC) -> int:
    """Return the bytes that a program may allocate before the kernel kills a process."""
    of_machine = _read_line(proc / "meminfo", "MemAvailable:") * 1024
    of_container = [free for names in CGROUP_FILES if (free := _free_of(cgroup, *names)) is not None]
    return max(min(of_machine, *of_container), 0) if of_container else of_machine


def resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    return int((PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _free_of(cgroup: Path, limit: str, use: str, account: str, files: str) -> int | None:  # None: no limit is known
    try:
        most, used = (cgroup / limit).read_text().strip(), int((cgroup / use).read_text())
        return int(most) - used + _read_line(cgroup / account, files) if most.isdigit() else None
    except OSError:
        return None


def _read_line(path: Path, name: str) -> int:
    """Return the number after a name; 0: the name is missing."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return next((int(fields[1]) for fields in pairs if fields[:1] == [name]), 0)
