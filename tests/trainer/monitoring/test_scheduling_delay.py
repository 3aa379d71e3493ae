"""Scheduling delay: a real process, stopped and continued repeatedly, reports the time in which it did not run."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from tests.support.patience import ENDLESS_SECONDS
from trainingjob_agent.fault_injection import RUNNING_SECONDS, STOPPED_SECONDS
from trainingjob_trainer.monitoring.scheduling_delay import SchedulingDelayMonitor

TELL = """
import time
from trainingjob_trainer.monitoring.scheduling_delay import SchedulingDelayMonitor
with SchedulingDelayMonitor(window_seconds=0.25, num_windows=4) as stalls:
    while True:
        print(stalls.delayed_share, flush=True)
        time.sleep(0.05)
"""


@contextmanager
def telling() -> Iterator[tuple["subprocess.Popen[str]", Callable[[], float | None]]]:
    """Start a process that reports its share; return it and a function that reads the next report."""
    with subprocess.Popen([sys.executable, "-c", TELL], stdout=subprocess.PIPE, text=True) as child:
        shares: SimpleQueue[str] = SimpleQueue()

        def read() -> None:
            assert child.stdout
            for line in child.stdout:
                shares.put(line.strip())

        reader = threading.Thread(target=read)
        reader.start()

        def read_share() -> float | None:
            reported = shares.get(timeout=ENDLESS_SECONDS)
            return None if reported == "None" else float(reported)

        try:
            yield child, read_share
        finally:
            child.kill()
            reader.join()


@pytest.mark.thorough
def test_repeatedly_stopped_process_reports_its_stopped_share() -> None:
    with telling() as (child, read_share):
        assert read_share() is None, "a moment is not reported"
        over = threading.Event()

        def stumble() -> None:
            while not over.is_set():
                child.send_signal(signal.SIGSTOP)
                over.wait(STOPPED_SECONDS)
                child.send_signal(signal.SIGCONT)
                over.wait(RUNNING_SECONDS)

        stumbling = threading.Thread(target=stumble)
        stumbling.start()
        try:
            while (share := read_share()) is None or share < 0.3:
                pass
        finally:
            over.set()
            stumbling.join()
        assert share < 0.8

        while (share := read_share()) is None or share > 0.15:
            pass


def test_stopped_monitor_measures_nothing() -> None:
    with SchedulingDelayMonitor() as stalls:
        assert "stalls" in {thread.name for thread in threading.enumerate()}

    assert stalls.delayed_share is None
    assert "stalls" not in {thread.name for thread in threading.enumerate()}
