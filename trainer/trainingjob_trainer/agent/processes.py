"""What the kernel says of a process: whether it is stopped, waits for storage or computes. No rights are needed for it.

A process that hangs cannot be asked, and in a hardened pod it cannot be traced either; what stands in `/proc` is free.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.protocol import ProcessState

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOPPED = frozenset("Tt")
PROC = Path("/proc")


@dataclass(frozen=True)
class Look:
    """A process at one moment: its main thread's state, its CPU seconds so far, its threads that no signal wakes."""

    state: str
    cpu_seconds: float
    stuck: frozenset[str]


@dataclass(frozen=True)
class Vitals:
    """What each report says of a process: whether it is stopped, and its whole CPU seconds so far."""

    stopped: bool
    cpu_seconds: int


def read_vitals(pid: int) -> Vitals | None:  # None: there is no such process
    """Return the vitals of a process: one file is read, because each report has them."""
    try:
        fields = _read_fields(PROC / str(pid))
    except OSError:
        return None
    return Vitals(fields[0] in STOPPED, (int(fields[11]) + int(fields[12])) // TICKS_PER_SECOND)


def look_at(pid: int) -> Look | None:  # None: there is no such process
    """Return what the kernel says of a process now."""
    try:
        fields = _read_fields(PROC / str(pid))
        tasks = [task for task in (PROC / str(pid) / "task").iterdir() if _is_stuck(task)]
    except OSError:
        return None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return Look(fields[0], cpu_seconds, frozenset(task.name for task in tasks))


def read_moved(pid: int) -> int | None:  # None: there is no such process, or its kernel does not count that
    """Return how many MiB a process has read and written so far, whatever it read them from.

    In whole MiB, because every process writes a line of its log now and then, also one that hangs.
    """
    try:
        counted = dict(line.split(": ") for line in (PROC / str(pid) / "io").read_text().splitlines())
        return (int(counted["rchar"]) + int(counted["wchar"])) >> 20
    except (OSError, ValueError, KeyError):
        return None


def compare(before: Look, after: Look, seconds: float) -> tuple[ProcessState, float]:
    """Return what a process did between two looks: its state, and how many CPU cores it used."""
    cores = max(after.cpu_seconds - before.cpu_seconds, 0.0) / seconds
    if after.state in STOPPED:
        return ProcessState.STOPPED, cores
    if before.stuck & after.stuck:
        return ProcessState.WAITING_FOR_STORAGE, cores
    return (ProcessState.RUNNING if after.state == "R" else ProcessState.SLEEPING), cores


def _is_stuck(task: Path) -> bool:
    try:
        return _read_fields(task)[0] == "D"
    except OSError:  # the thread ended meanwhile
        return False


def _read_fields(process: Path) -> list[str]:
    """Return what follows the name, which may hold anything: the state first."""
    return (process / "stat").read_text().rpartition(") ")[2].split()
