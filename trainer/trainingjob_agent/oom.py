"""The count of OOM kills in this container, from its memory cgroup."""

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
COUNTERS = ("memory.events", "memory/memory.oom_control")
"""Cgroup version 2 and version 1; both files have a line `oom_kill <count>`."""


def count_oom_kills(cgroup: Path = CGROUP) -> int:
    """Return the number of OOM kills since the container started; 0 if the counter cannot be read."""
    for counter in COUNTERS:
        try:
            lines = (cgroup / counter).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                return int(count)
    return 0
