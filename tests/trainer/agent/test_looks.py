"""What a process looks like from outside: its state and CPU use in /proc, its threads in its log."""

import os
from pathlib import Path

import pytest

from trainingjob_agent import processes
from trainingjob_agent.processes import (
    ProcessSample,
    Vitals,
    compare_samples,
    read_io_mebibytes,
    read_vitals,
    sample_process,
)
from trainingjob_agent.stacks import find_stacks, truncate_stacks
from trainingjob_api.protocol import LOG_EXCERPT_BYTES, ProcessState

COMPARED: dict[str, tuple[ProcessSample, ProcessSample, tuple[ProcessState, float]]] = {
    "it waits": (
        ProcessSample("S", 5.0, frozenset()),
        ProcessSample("S", 5.0, frozenset()),
        (ProcessState.SLEEPING, 0.0),
    ),
    "it computes": (
        ProcessSample("R", 5.0, frozenset()),
        ProcessSample("R", 6.0, frozenset()),
        (ProcessState.RUNNING, 2.0),
    ),
    "its other threads compute": (
        ProcessSample("S", 5.0, frozenset()),
        ProcessSample("S", 6.0, frozenset()),
        (ProcessState.SLEEPING, 2.0),
    ),
    "it is stopped": (
        ProcessSample("T", 5.0, frozenset()),
        ProcessSample("T", 5.0, frozenset()),
        (ProcessState.STOPPED, 0.0),
    ),
    "a debugger has stopped it": (
        ProcessSample("S", 5.0, frozenset()),
        ProcessSample("t", 5.0, frozenset()),
        (ProcessState.STOPPED, 0.0),
    ),
    "a thread waits for storage": (
        ProcessSample("S", 5.0, frozenset({"7", "8"})),
        ProcessSample("S", 5.0, frozenset({"8"})),
        (ProcessState.WAITING_FOR_STORAGE, 0.0),
    ),
    "threads wait for storage in turn: that is work": (
        ProcessSample("S", 5.0, frozenset({"7"})),
        ProcessSample("S", 5.0, frozenset({"8"})),
        (ProcessState.SLEEPING, 0.0),
    ),
}


@pytest.mark.parametrize(("before", "after", "want"), COMPARED.values(), ids=COMPARED.keys())
def test_compare(before: ProcessSample, after: ProcessSample, want: tuple[ProcessState, float]) -> None:
    assert compare_samples(before, after, 0.5) == want


def test_diagnostics_of_a_process_are_read_from_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stat(tmp_path / "12", "S", utime=250, stime=50)
    write_stat(tmp_path / "12/task/12", "S")
    write_stat(tmp_path / "12/task/13", "D")
    (tmp_path / "12/task/14").mkdir()  # it has ended meanwhile
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes, "TICKS_PER_SECOND", 100)

    assert sample_process(12) == ProcessSample("S", 3.0, frozenset({"13"}))
    assert sample_process(99) is None


@pytest.mark.parametrize(("state", "stopped"), [("R", False), ("S", False), ("D", False), ("T", True), ("t", True)])
def test_each_report_contains_process_state_and_cpu_time(
    state: str, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stat(tmp_path / "12", state, utime=250, stime=149)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes, "TICKS_PER_SECOND", 100)

    assert read_vitals(12) == Vitals(stopped, 3)
    assert read_vitals(99) is None


def write_stat(folder: Path, state: str, utime: int = 0, stime: int = 0) -> None:
    folder.mkdir(parents=True)
    fields = [state, *["0"] * 10, str(utime), str(stime), *["0"] * 37]
    (folder / "stat").write_text(f"12 (a) name ) {' '.join(fields)}\n")


def test_io_of_a_process_is_counted_in_whole_mebibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    (tmp_path / "12").mkdir()
    (tmp_path / "12/io").write_text(f"rchar: {3 << 20}\nwchar: {(1 << 20) - 1}\nsyscr: 99\nread_bytes: 0\n")
    (tmp_path / "13").mkdir()
    (tmp_path / "13/io").write_text("")

    assert read_io_mebibytes(12) == 3
    assert read_io_mebibytes(13) is None
    assert read_io_mebibytes(99) is None


def test_a_file_that_this_process_reads_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(2 << 20))
    before = read_io_mebibytes(os.getpid())

    (tmp_path / "file").read_bytes()

    assert before is not None
    assert (read_io_mebibytes(os.getpid()) or 0) >= before + 2


def test_this_process_runs() -> None:
    look = sample_process(os.getpid())

    assert look
    assert look.state == "R"
    assert look.cpu_seconds > 0


DUMP = """2026-11-22 step 7
Thread 0x00007faf1a7ff6c0 (most recent call first):
  File "child.py", line 59 in _obey
  ...
a line of another thread
Thread 0x00007faecb7f66c0 (most recent call first):
  <no Python frame>

Current thread 0x00007faf38b22b80 (most recent call first):
  File "array.py", line 696 in _value
  File "run.py", line ??? in <module>
I1122 goes on
  File "somewhere.py", line 1 in a traceback
"""


def test_the_main_thread_of_a_dump_comes_first_and_only_the_dump() -> None:
    assert find_stacks(DUMP) == (
        "Current thread 0x00007faf38b22b80 (most recent call first):\n"
        '  File "array.py", line 696 in _value\n'
        '  File "run.py", line ??? in <module>\n\n'
        "Thread 0x00007faecb7f66c0 (most recent call first):\n"
        "  <no Python frame>\n\n"
        "Thread 0x00007faf1a7ff6c0 (most recent call first):\n"
        '  File "child.py", line 59 in _obey\n'
        "  ..."
    )


@pytest.mark.parametrize("log", ["", "nothing of that\n", '  File "a.py", line 1 in a traceback\n'])
def test_a_log_without_a_dump_has_no_stacks(log: str) -> None:
    assert find_stacks(log) == ""


def test_an_excerpt_of_stacks_ends_with_a_whole_line() -> None:
    line = '  File "a.py", line 1 in ' + "é" * 20
    stacks = "\n".join(["Thread 0x1", *[line] * 100])

    cut = truncate_stacks(stacks)

    assert cut == "\n".join(["Thread 0x1", *[line] * ((LOG_EXCERPT_BYTES - 10) // (len(line.encode()) + 1))])
    assert len(truncate_stacks("é" * 3000).encode()) == LOG_EXCERPT_BYTES
    assert truncate_stacks("Thread 0x1\n") == "Thread 0x1"
