"""Memory and CPU time of a process and its children, and the limit of open files."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

MIB = 2**20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def raise_file_limit() -> None:
    """Raise this process's limit of open files to its maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children; shared pages count once."""
    total = 0
    for each in _with_children(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its children have used, with those that have ended."""
    total = 0
    for each in _with_children(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_SECOND


def list_children(pid: int) -> tuple[int, ...]:
    """Return the child processes that a process has started."""
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    yield from list_children(pid)
