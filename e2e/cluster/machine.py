"""A machine: one process tree with its own process, mount and network namespace.

A power loss is one SIGKILL. When the first process dies, the kernel kills the others at once, and removes mounts,
network devices, firewall rules and routes with the last of them. Only control groups remain to be removed.
"""

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.paths import LOGS
from e2e.cluster.processes import Process, child_pids, find_process, identify, launch, record_path, write_record
from e2e.cluster.run_program import ClusterError, run, wait_until

INIT = "init"

# Script of the first process. `wait` makes bash reap the orphans (container shims) that the kernel reparents to it.
# The host's /sys stays mounted: a fresh /sys, as from `ip netns exec`, has no cgroups, and no container would start.
BOOT_SCRIPT = """
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
echo 1 > /proc/sys/net/ipv4/ip_forward
ip link set lo up
%s
touch /run/booted
sleep infinity &
wait $!
"""

DAEMON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Daemon:
    """A program that a machine runs: its name, its arguments, and folders to prepend to its PATH."""

    name: str
    argv: Sequence[str | Path]
    path: Sequence[Path] = ()


@dataclass(frozen=True)
class Machine:
    """One machine by name. All state is in process records, so that any call of the CLI can find the machine.

    `setup` is a shell script that runs in the machine's namespaces during boot.
    """

    name: str
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def find_init(self) -> Process | None:
        """Return the machine's first process; None if the machine is off."""
        return find_process(self.name, INIT)

    def init(self) -> Process:
        """Return the machine's first process.

        Raises:
            ClusterError: the machine is off.
        """
        if (process := self.find_init()) is None:
            raise ClusterError(f"machine {self.name} is off; `python -m e2e.cluster up` starts what is missing")
        return process

    def boot(self) -> Process:
        """Power on the machine.

        Raises:
            ClusterError: the setup failed; the message names the log.
        """
        cgroups.create(self.name)
        log = self._log(INIT)
        unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        parent = launch(
            [*unshare, "bash", "-c", BOOT_SCRIPT % self.setup], log=log, cgroup_files=cgroups.daemon_files(self.name),
            env=_environment(self.env, ()),
        )  # fmt: skip
        wait_until(lambda: bool(child_pids(parent.pid)), f"machine {self.name} to fork (see {log})", seconds=10)
        init = identify(child_pids(parent.pid)[0], log)
        write_record(self.name, INIT, init)
        booted = Path(f"/proc/{init.pid}/root/run/booted")
        wait_until(lambda: booted.exists() or not init.is_alive(), f"machine {self.name} to boot", seconds=20)
        if not init.is_alive():
            raise ClusterError(f"machine {self.name} did not boot; see {log}")
        return init

    def run(self, argv: Sequence[str | Path], *, stdin: str | None = None) -> str:
        """Run a program inside the machine to its end and return its output."""
        return run([*self._enter(), *argv], stdin=stdin)

    def is_running(self, daemon: str) -> bool:
        """Return whether a daemon of the machine is running."""
        return self.find_init() is not None and find_process(self.name, daemon) is not None

    def start(self, daemon: Daemon) -> None:
        """Start a daemon, unless it is running."""
        if self.is_running(daemon.name):
            return
        process = launch(
            [*self._enter(), *daemon.argv], log=self._log(daemon.name), cgroup_files=cgroups.daemon_files(self.name),
            env=_environment(self.env, daemon.path),
        )  # fmt: skip
        write_record(self.name, daemon.name, process)

    def wait_for(self, daemon: str, condition: Callable[[], bool], what: str, *, seconds: float) -> None:
        """Return when a daemon has made the condition true.

        Raises:
            ClusterError: the time ran out, or the daemon ended; the message names its log.
        """
        wait_until(lambda: not self.is_running(daemon) or condition(), what, seconds=seconds)
        if not self.is_running(daemon):
            raise ClusterError(f"{daemon} of machine {self.name} ended; see {self._log(daemon)}")

    def stop(self, daemon: str) -> None:
        """Kill only this daemon; do nothing if it is not running."""
        if (entry := find_process(self.name, daemon)) is None:
            return
        # The record holds `nsenter`, which waits for the daemon in the other process namespace and ends with it.
        for pid in child_pids(entry.pid):
            identify(pid, self._log(daemon)).kill()
        wait_until(lambda: not entry.is_alive(), f"{daemon} of machine {self.name} to die", seconds=20)

    def kill(self) -> None:
        """Power off: every process of the machine dies at once, frozen ones too. Do nothing if it is off."""
        if (init := self.find_init()) is not None:
            init.kill()
        if cgroups.is_frozen(self.name):  # cgroup v1 delivers a SIGKILL to a frozen process only when it is thawed
            cgroups.set_frozen(self.name, frozen=False)
        if init is not None:
            wait_until(lambda: not init.is_alive(), f"machine {self.name} to die", seconds=30)
        for pid in cgroups.members(self.name):  # left by a start that was interrupted before its record was written
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        cgroups.remove(self.name)
        shutil.rmtree(record_path(self.name, INIT).parent, ignore_errors=True)

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.init().pid}", "--mount", "--net", "--pid", "--"]

    def _log(self, name: str) -> Path:
        return LOGS / f"{self.name}.{name}.log"


def _environment(extra: Mapping[str, str], path: Sequence[Path]) -> dict[str, str]:
    """Return a daemon's environment: only HOME of the caller's variables, to keep proxies and tokens out."""
    return {
        "HOME": os.environ.get("HOME", "/root"),
        "PATH": ":".join([*map(str, path), DAEMON_PATH]),
        **extra,
    }
