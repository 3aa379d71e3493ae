"""The agent's small parts: the end of a log, why a child ended, counters of the kernel, ports, orphans, the ledger."""

import gc
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainingjob_agent import launch
from trainingjob_agent.exit_reason import explain_exit
from trainingjob_agent.generation_file import GenerationFile
from trainingjob_agent.log_tail import LogTail, excerpt
from trainingjob_agent.ports import ReservedPort
from trainingjob_agent.processes import count_oom_kills
from trainingjob_agent.state import ChildExited
from trainingjob_api.protocol import Failure, FailureReason


def test_a_tail_keeps_the_last_bytes() -> None:
    tail = LogTail(limit=10)
    for chunk in (b"0" * 20, b"123456789", b"abc\n", b"\xff"):
        tail.write(chunk)

    assert tail.text() == "56789abc\n"


NATIVE = "F1121 11:22:51.155179 3654 client.h:86] the other is gone\n*** Check failure stack trace: ***\n    @ 0x7f16\n"
PYTHON = 'Fatal Python error: Aborted\n\nThread 0x1:\n  File "queues.py", line 246\n\nExtension modules: numpy, yaml\n'
THROWN = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc]\n"
EXCERPTS: dict[str, tuple[str, int, str]] = {
    "nothing": ("", 10, ""),
    "all of a short log": ("one\ntwo\n", 10, "one\ntwo"),
    "whole lines of a long one": ("0123456789\nabc\ndef\n", 9, "abc\ndef"),
    "the end of a long line": ("0123456789abcdef\n", 10, "6789abcdef"),
    "no half letters": ("é23456789x", 10, "23456789x"),
    "native last words, not the stack below": (f"step 1\n{NATIVE}{PYTHON}", 57, NATIVE.splitlines()[0]),
    "an exception of C++, not the stack below": (f"step 1\n{THROWN}{PYTHON}", len(THROWN), THROWN.strip()),
    "Python's last words": (f"step 1\n{PYTHON}", 27, "Fatal Python error: Aborted"),
    "a word that only looks so": ("an F1121 11:22 in a line\nlast", 5, "last"),
}


@pytest.mark.parametrize(("log", "limit", "want"), EXCERPTS.values(), ids=EXCERPTS.keys())
def test_excerpt(log: str, limit: int, want: str) -> None:
    assert excerpt(log, limit) == want


PEER_LOG = "F0000 client.h Terminating process because the JAX distributed service detected fatal errors. This most"
ENDINGS: dict[str, tuple[ChildExited, FailureReason, str]] = {
    "an exception nobody caught": (ChildExited(1, code=1, log="Traceback"), FailureReason.CRASH, "exited with code 1"),
    "an exit before it was done": (ChildExited(1, code=0), FailureReason.CRASH, "exited with code 0"),
    "killed for memory": (
        ChildExited(1, signal="SIGKILL", out_of_memory=True),
        FailureReason.OUT_OF_MEMORY,
        "used up the container's memory (2Gi and its memory volumes)",
    ),
    "killed while another process died for memory": (
        ChildExited(1, signal="SIGTERM", out_of_memory=True),
        FailureReason.KILLED,
        "ended by SIGTERM",
    ),
    "killed from outside": (ChildExited(1, signal="SIGKILL"), FailureReason.KILLED, "ended by SIGKILL"),
    "its own fault": (ChildExited(1, signal="SIGSEGV"), FailureReason.CRASH, "crashed with SIGSEGV"),
    "aborted": (ChildExited(1, signal="SIGABRT", log="CHECK failed"), FailureReason.CRASH, "crashed with SIGABRT"),
    "aborted because another host was gone": (
        ChildExited(1, signal="SIGABRT", log=f"{PEER_LOG}\n{'*** a long stack trace ***' * 100}"),
        FailureReason.PEER,
        "another host of the world was lost",
    ),
    "aborted by a thread of gloo's": (
        ChildExited(1, signal="SIGABRT", log=f"{THROWN}{PYTHON}"),
        FailureReason.PEER,
        "another host of the world was lost",
    ),
}


@pytest.mark.parametrize(("ended", "reason", "words"), ENDINGS.values(), ids=ENDINGS.keys())
def test_explain_end(ended: ChildExited, reason: FailureReason, words: str) -> None:
    failure = explain_exit(ended, step=7, memory="2Gi")

    assert failure.reason is reason
    assert words in failure.message
    assert (failure.step, failure.exit_code, failure.signal) == (7, ended.code, ended.signal)
    assert failure.log == excerpt(ended.log)
    assert failure.path == ("spec.runtime.resources.memory" if reason is FailureReason.OUT_OF_MEMORY else "")
    assert not failure.fatal


def test_the_end_of_a_program_is_not_called_that_of_a_trainer() -> None:
    failures = [
        explain_exit(ended, step=7, memory="2Gi", is_program=True)
        for ended in (*(ended for ended, _, _ in ENDINGS.values()), ChildExited(1, code=3))
    ]

    assert [failure.message for failure in failures if "trainer" in failure.message + failure.path] == []
    assert "spec.training" not in "".join(failure.message for failure in failures)
    assert failures[-1].message == "the program exited with code 3; see the end of its log."


MISSED: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "one": ("SIGABRT", "(stopped sending heartbeats):\n3\nThe tasks have crashed.", (3,)),
    "several, told twice": (
        "SIGABRT",
        "(stopped sending heartbeats):\n12\n3\nThe\n(stopped sending heartbeats):\n3\n",
        (3, 12),
    ),
    "the service itself": (
        "SIGABRT",
        "DEADLINE_EXCEEDED: no answer\n\nRPC: /xla.coordination.CoordinationService/Heartbeat",
        (0,),
    ),
    "nobody": ("SIGABRT", "", ()),
    "in the log of one that was killed": ("SIGKILL", "(stopped sending heartbeats):\n3\n", ()),
}


@pytest.mark.parametrize(("signal", "log", "want"), MISSED.values(), ids=MISSED.keys())
def test_process_without_jax_heartbeats_is_reported(signal: str, log: str, want: tuple[int, ...]) -> None:
    ended = ChildExited(1, signal=signal, log=f"{PEER_LOG}: UNAVAILABLE: The following tasks are unhealthy {log}")

    assert explain_exit(ended, step=7, memory="2Gi").missed == want


def test_failure_reported_by_a_child_takes_precedence() -> None:
    words = Failure(reason=FailureReason.DATA, fatal=True, message="no text", path="spec.data", step=3)

    believed = explain_exit(ChildExited(1, code=3, log="the log", failure=words), step=7, memory="2Gi")
    with_own_log = explain_exit(
        ChildExited(1, code=3, log="the log", failure=words.model_copy(update={"log": "my log", "step": None})),
        step=7,
        memory="2Gi",
    )

    assert believed == words.model_copy(update={"exit_code": 3, "log": "the log"})
    assert (with_own_log.log, with_own_log.step) == ("my log", 7)


OOM_FILES: dict[str, tuple[dict[str, str], int]] = {
    "version 2": ({"memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"}, 2),
    "version 1": ({"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}, 4),
    "an old kernel counts nothing": ({"memory/memory.oom_control": "oom_kill_disable 0\n"}, 0),
    "no cgroups": ({}, 0),
}


@pytest.mark.parametrize(("files", "want"), OOM_FILES.values(), ids=OOM_FILES.keys())
def test_count_oom_kills(files: dict[str, str], want: int, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    assert count_oom_kills(tmp_path) == want


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_reserved_port_is_taken_until_it_is_released(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    held = ReservedPort(address)

    with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
        other.bind((address, held.number))
    held.release()
    with socket.socket(family) as other:
        other.bind((address, held.number))
        other.listen()


def test_two_held_ports_differ() -> None:
    one, two = ReservedPort("127.0.0.1"), ReservedPort("127.0.0.1")

    assert one.number != two.number
    one.release()
    two.release()


def test_orphans_are_reaped_and_our_own_are_not() -> None:
    # In a separate process, where no other code waits for children.
    program = """
import os, subprocess
from trainingjob_agent.orphans import become_subreaper, reap_orphans
become_subreaper()
reap_orphans({})  # there is no child yet
own = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
gate, opened = os.pipe()
parent = os.fork()
if parent == 0:
    os.close(opened)
    orphan = os.fork()
    if orphan == 0:
        os.read(gate, 1)
        os._exit(0)
    os._exit(0)
os.waitpid(parent, 0)
orphan = int(open("/proc/self/task/%d/children" % os.getpid()).read().split()[-1])
os.close(opened)
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
reap_orphans({own.pid})
assert own.wait() == 7
reap_orphans({own.pid})
try:
    os.waitpid(orphan, os.WNOHANG)
except ChildProcessError:
    print("gone")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "gone\n"


def test_the_ledger_outlives_its_agent(tmp_path: Path) -> None:
    GenerationFile("uid", tmp_path).write(3)

    assert GenerationFile("uid", tmp_path).read() == 3
    assert GenerationFile("another", tmp_path).read() == 0


def test_deleted_generation_file_leaves_nothing(tmp_path: Path) -> None:
    ledger = GenerationFile("uid", tmp_path)
    ledger.write(3)
    ledger.delete()
    ledger.delete()

    assert ledger.read() == 0
    assert list(tmp_path.iterdir()) == []


def test_the_command_exits_with_the_code_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> int:
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        return 143

    gc.unfreeze()
    monkeypatch.setattr("trainingjob_agent.main.main", run)

    with pytest.raises(SystemExit) as ended:
        launch.main()
    assert ended.value.code == 143


def test_a_library_that_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("main", "supervisor", "rendezvous", "operator_session"):
        monkeypatch.delitem(sys.modules, f"trainingjob_agent.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    with pytest.raises(SystemExit, match=r"needs aiohttp, .* pip install 'trainingjob\[trainer\]'"):
        launch.main()


def test_a_missing_module_of_this_project_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trainingjob_agent.main", None)

    with pytest.raises(ModuleNotFoundError):
        launch.main()
