"""How often the kernel killed in this container for want of memory, from its own memory cgroup."""

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
COUNTERS = ("memory.events", "memory/memory.oom_control")
"""Version 2 and version 1; both have a line `oom_kill <count>`."""


def count_oom_kills(cgroup: Path = CGROUP) -> int:
    """Return the number of processes killed for memory since the container started; 0 where that cannot be read."""
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
