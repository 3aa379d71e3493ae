"""Process states from `/proc`: stopped, waiting for storage, or computing; and the OOM kills of the container.

No privileges are needed. A hung process cannot be queried, and a hardened pod does not allow tracing.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.protocol import ProcessState

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOPPED = frozenset("Tt")
PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessSample:
    """A sample of a process: the main thread's state, CPU seconds, and threads in uninterruptible sleep."""

    state: str
    cpu_seconds: float
    stuck: frozenset[str]


@dataclass(frozen=True)
class Vitals:
    """The part of a report about a process: whether it is stopped, and its CPU time in whole seconds."""

    stopped: bool
    cpu_seconds: int


def read_vitals(pid: int) -> Vitals | None:  # None: no such process
    """Return the vitals of a process. Only one file is read, because every report needs them."""
    try:
        fields = _read_fields(PROC / str(pid))
    except OSError:
        return None
    return Vitals(fields[0] in STOPPED, (int(fields[11]) + int(fields[12])) // TICKS_PER_SECOND)


def sample_process(pid: int) -> ProcessSample | None:  # None: no such process
    """Return a sample of a process."""
    try:
        fields = _read_fields(PROC / str(pid))
        tasks = [task for task in (PROC / str(pid) / "task").iterdir() if _is_stuck(task)]
    except OSError:
        return None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return ProcessSample(fields[0], cpu_seconds, frozenset(task.name for task in tasks))


def read_io_mebibytes(pid: int) -> int | None:  # None: no such process, or the kernel does not count its I/O
    """Return how many MiB a process has read and written, from any source.

    The unit is whole MiB, because every process writes a few log lines, also a hung one.
    """
    try:
        counted = dict(line.split(": ") for line in (PROC / str(pid) / "io").read_text().splitlines())
        return (int(counted["rchar"]) + int(counted["wchar"])) >> 20
    except (OSError, ValueError, KeyError):
        return None


def compare_samples(before: ProcessSample, after: ProcessSample, seconds: float) -> tuple[ProcessState, float]:
    """Return the state of a process between two samples, and how many CPU cores it used."""
    cores = max(after.cpu_seconds - before.cpu_seconds, 0.0) / seconds
    if after.state in STOPPED:
        return ProcessState.STOPPED, cores
    if before.stuck & after.stuck:
        return ProcessState.WAITING_FOR_STORAGE, cores
    return (ProcessState.RUNNING if after.state == "R" else ProcessState.SLEEPING), cores


def _is_stuck(task: Path) -> bool:
    try:
        return _read_fields(task)[0] == "D"
    except OSError:  # the thread has ended
        return False


def _read_fields(process: Path) -> list[str]:
    """Return the fields after the process name, which may contain any character; the state is the first."""
    return (process / "stat").read_text().rpartition(") ")[2].split()


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
