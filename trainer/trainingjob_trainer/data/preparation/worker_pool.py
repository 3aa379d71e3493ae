"""Tokenize parts in several processes of this host: reading records is bound to one CPU in Python."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.preparation.part_progress import PartProgress
from trainingjob_trainer.data.preparation.parts import PartWriter
from trainingjob_trainer.runtime.errors import TrainingError

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
WORKER = "trainingjob_trainer.data.preparation.worker"

type PartReport = Callable[[int, PartProgress | None], None]
"""Receives how far a part is, from any thread. None: it is complete."""


def ignore_parts(part: int, progress: PartProgress | None) -> None:
    """Report nothing."""


def write_parts(writer: PartWriter, parts: Iterable[int], report: PartReport) -> None:
    """Tokenize parts, in order, and report each. Parts that exist when their turn comes are only reported.

    One part is written by this process, several by as many processes as there are CPUs.

    Raises:
        TrainingError: a part cannot be tokenized. The other processes are stopped.
    """
    waiting = list(parts)
    num_workers = min(count_cpus(), len(waiting))
    if num_workers <= 1:
        for part in waiting:
            if not writer.has_part(part):
                writer.write(part, partial(report, part))
            report(part, None)
        return
    remaining, lock = iter(waiting), Lock()

    def next_part() -> int | None:
        with lock:
            return next(remaining, None)

    def serve() -> None:
        with _start_worker(writer) as run:
            while (part := next_part()) is not None:
                if not writer.has_part(part):
                    run(part, partial(report, part))
                report(part, None)

    with ThreadPoolExecutor(num_workers) as threads:
        running = [threads.submit(serve) for _ in range(num_workers)]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            with lock:
                remaining = iter(())
    for future in running:
        future.result()


@contextmanager
def _start_worker(writer: PartWriter) -> Iterator[Callable[[int, Callable[[PartProgress], None]], None]]:
    """Provide a function that tokenizes a part in another process, and reports how far it is."""
    process = subprocess.Popen([sys.executable, "-P", "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin  # noqa: S101
    assert process.stdout  # noqa: S101
    request, answers = process.stdin, process.stdout

    def run(part: int, report: Callable[[PartProgress], None]) -> None:
        with suppress(BrokenPipeError):  # the process has ended, and there is no answer
            request.write(b"%d\n" % part)
            request.flush()
        while isinstance(answer := read_answer(), list):
            report(PartProgress(*answer))
        if error := answer:
            reason = FailureReason(error.pop("reason"))
            raise TrainingError(reason, error.pop("message"), **error)

    def read_answer() -> Any:
        line = answers.readline()
        if not line:
            raise _died_error(process.wait())
        return json.loads(line)

    try:
        try:
            pickle.dump(writer, request)
        except BrokenPipeError:
            raise _died_error(process.wait()) from None
        yield run
    finally:
        with suppress(BrokenPipeError):
            request.close()
        process.wait()
        answers.close()


def _died_error(status: int) -> TrainingError:
    if status == -signal.SIGKILL:
        return TrainingError(
            FailureReason.CRASH,
            "a process that tokenizes text was killed by signal 9, perhaps because memory ran out. Raise "
            "spec.runtime.resources.memory if it happens again.",
            path="spec.runtime.resources.memory",
            fatal=False,
        )
    exit_description = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
    return TrainingError(
        FailureReason.CRASH,
        f"a process that tokenizes text {exit_description}. The log of this host shows its error. If it happens again, "
        "leave the file out with `exclude`.",
        path="spec.data",
        fatal=False,
    )


def count_cpus() -> int:
    """Return the CPUs that this process may use, by its affinity and by the quota of its container."""
    available = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return available
    return available if quota == "max" else max(min(available, round(int(quota) / int(period))), 1)
