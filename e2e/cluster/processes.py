"""Detached processes, and the records by which a later call finds them.

A record holds the pid, the start time and the boot id, because the pid alone may have been reused.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.paths import RUN
from e2e.cluster.run_program import ClusterError

RECORDS = RUN / "processes"

# The intermediate shell orphans the process at once: a long-lived caller (pytest) must not accumulate zombies.
# Writing 0 to cgroup.procs moves the writer itself.
LAUNCH = """
log=$1 groups=$2; shift 2
( for group in $groups; do echo 0 > "$group"; done; exec setsid "$@" ) </dev/null >>"$log" 2>&1 &
echo $!
"""


@dataclass(frozen=True)
class Process:
    """One process of this boot. Its start time distinguishes it from a later process with the same pid."""

    pid: int
    start: str
    boot: str

    def is_alive(self) -> bool:
        """Return whether exactly this process is running; a zombie is not."""
        return self.boot == boot_id() and start_time(self.pid) == self.start

    def kill(self) -> None:
        """Send SIGKILL to exactly this process; do nothing if it has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to exactly this process; do nothing if it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.is_alive():  # with the handle open, the pid cannot be reused unnoticed
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)


def boot_id() -> str:
    """Return the kernel's identifier of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> str | None:
    """Return a process's start time in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return None if state in "ZX" else fields[18]


def command_line(pid: int) -> str:
    """Return a process's arguments with spaces between them; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def child_pids(pid: int) -> list[int]:
    """Return the pids of a process's children; empty if it has ended."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return []


def launch(argv: Sequence[str | Path], *, log: Path, cgroup_files: Sequence[Path], env: Mapping[str, str]) -> Process:
    """Start a process that outlives this one, with its output appended to `log`.

    Raises:
        ClusterError: the process ended at once.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    shell = ["sh", "-c", LAUNCH, "launch", str(log), " ".join(map(str, cgroup_files)), *map(str, argv)]
    done = subprocess.run(shell, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return identify(int(done.stdout), log)


def identify(pid: int, log: Path) -> Process:
    """Return the identity of a running process.

    Raises:
        ClusterError: the process is not running; the message names its log.
    """
    start = start_time(pid)
    if start is None:
        raise ClusterError(f"process {pid} ended at once; see {log}")
    return Process(pid, start, boot_id())


def record_path(machine: str, name: str) -> Path:
    """Return the path of the record of one process of one machine."""
    return RECORDS / machine / f"{name}.json"


def write_record(machine: str, name: str, process: Process) -> None:
    """Write a process record atomically."""
    path = record_path(machine, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(process)))
    scratch.replace(path)


def find_process(machine: str, name: str) -> Process | None:
    """Return a recorded process that is still running; None if it was never started or has ended."""
    try:
        process = Process(**json.loads(record_path(machine, name).read_text()))
    except FileNotFoundError:
        return None
    return process if process.is_alive() else None


def recorded_machines() -> Iterator[str]:
    """Yield the names of all machines that have records."""
    if RECORDS.is_dir():
        yield from sorted(path.name for path in RECORDS.iterdir())
