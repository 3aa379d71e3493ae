"""Detached processes and the records by which a later call finds them again.

A record holds the pid, the start time and the boot, because a pid alone may by then belong to a stranger.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.commands import ClusterError
from e2e.cluster.paths import RUN

RECORDS = RUN / "processes"

# The shell in the middle makes the process an orphan at once: a caller that lives on (pytest) must not collect zombies.
# Writing 0 to cgroup.procs moves the writer itself.
LAUNCH = """
log=$1 groups=$2; shift 2
( for group in $groups; do echo 0 > "$group"; done; exec setsid "$@" ) </dev/null >>"$log" 2>&1 &
echo $!
"""


@dataclass(frozen=True)
class Process:
    """One process of this boot, told apart from a later one with the same pid by its start time."""

    pid: int
    start: str
    boot: str

    def is_alive(self) -> bool:
        """Return whether exactly this process still runs; a zombie does not."""
        return self.boot == boot_id() and start_time(self.pid) == self.start

    def kill(self) -> None:
        """Send SIGKILL to this process and to no other; do nothing when it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.is_alive():  # asked with the handle open: from here on the pid cannot change hands unseen
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)


def boot_id() -> str:
    """Return the kernel's name for the time since the last reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None: there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return None if state in "ZX" else fields[18]


def child_pids(pid: int) -> list[int]:
    """Return the pids of a process's children; none when it has ended."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return []


def launch(argv: Sequence[str | Path], *, log: Path, cgroup_files: Sequence[Path], env: Mapping[str, str]) -> Process:
    """Start a process that outlives this one, with its output appended to `log`.

    Raises:
        ClusterError: It ended at once.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    shell = ["sh", "-c", LAUNCH, "launch", str(log), " ".join(map(str, cgroup_files)), *map(str, argv)]
    done = subprocess.run(shell, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return identify(int(done.stdout), log)


def identify(pid: int, log: Path) -> Process:
    """Return the identity of a process that runs now.

    Raises:
        ClusterError: It does not run; the message points to its log.
    """
    start = start_time(pid)
    if start is None:
        raise ClusterError(f"process {pid} ended at once; see {log}")
    return Process(pid, start, boot_id())


def record_path(machine: str, name: str) -> Path:
    """Return where the record of one process of one machine lies."""
    return RECORDS / machine / f"{name}.json"


def write_record(machine: str, name: str, process: Process) -> None:
    """Remember a process, in one step, so that a half-written record never exists."""
    path = record_path(machine, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(process)))
    scratch.replace(path)


def find_process(machine: str, name: str) -> Process | None:
    """Return a recorded process that still runs; None: never started, or ended."""
    try:
        process = Process(**json.loads(record_path(machine, name).read_text()))
    except FileNotFoundError:
        return None
    return process if process.is_alive() else None


def recorded_machines() -> Iterator[str]:
    """Yield the names of all machines that have records."""
    if RECORDS.is_dir():
        yield from sorted(path.name for path in RECORDS.iterdir())
