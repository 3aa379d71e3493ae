"""Which process a record of the local cluster means, and which it does not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from e2e.cluster import cgroups
from e2e.cluster.processes import Process, boot_id, command_line, start_time


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def recorded(pid: int) -> Process:
    return Process(pid, start_time(pid) or "", boot_id())


def test_a_running_process_is_alive() -> None:
    assert recorded(os.getpid()).is_alive()


OTHERS = {
    "the pid was given to a later process": {"start": "1"},
    "the record is from before a reboot": {"boot": "another"},
    "the pid is free": {"pid": 2**22 + 1},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_a_record_means_one_process_only(change: dict[str, str], sleeper: subprocess.Popen[bytes]) -> None:
    other = replace(recorded(sleeper.pid), **change)

    other.kill()

    assert not other.is_alive()
    assert sleeper.poll() is None


def test_a_killed_process_is_dead_even_before_it_is_collected(sleeper: subprocess.Popen[bytes]) -> None:
    process = recorded(sleeper.pid)

    process.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now, until Popen collects it

    assert not process.is_alive()


def test_a_process_is_stopped_and_continues(sleeper: subprocess.Popen[bytes]) -> None:
    process = recorded(sleeper.pid)

    process.send_signal(SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert process.is_alive()
    process.send_signal(SIGCONT)

    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)


def test_a_command_line_names_the_program() -> None:
    assert command_line(os.getpid()) == " ".join(sys.orig_argv).strip()
    assert command_line(2**22 + 1) == ""


def test_the_processes_of_one_pod_are_found_by_its_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    (tmp_path / "cgroup.controllers").touch()
    node = tmp_path / "trainingjob" / "system"
    for folder, pids in {"daemons": "1", "kubepods/pod-a/c1": "2\n3", "kubepods/burstable/podb/c2": "4"}.items():
        (node / folder).mkdir(parents=True)
        (node / folder / "cgroup.procs").write_text(pids)

    assert sorted(cgroups.members("system")) == [1, 2, 3, 4]
    assert sorted(cgroups.members("system", "-a")) == [2, 3]
    assert cgroups.members("system", "b") == [4]
