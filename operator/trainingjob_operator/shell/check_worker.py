"""The process that checks jobs, so that no spec can keep the operator's event loop waiting.

It reads requests from standard input and writes results to standard output, each a pickle with its length before it.
Both ends are this program; nothing that a peer wrote is unpickled. Its first message holds the rows of the hardware
table.

The kernel ends it where a request uses more CPU time than allowed: the operator sees that its output ended.
"""

import gc
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.validation.validate import check_job
from trainingjob_operator.shell.admission_review import NotAReviewError
from trainingjob_operator.shell.examining import examine

NICENESS = 2
"""The event loop of the operator comes first on a busy node."""
MAX_DATA_BYTES = 320 * 1024 * 1024
"""The memory that a request can make this process allocate; above it the request fails."""
MAX_KEPT_KIB = 96 * 1024
"""A process that once needed more is replaced: Python seldom returns memory."""
LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Request:
    """One task: a review by its body, or a job by its name and spec."""

    arguments: tuple[Any, ...]
    cpu_seconds: float


@dataclass(frozen=True)
class Result:
    """What a task came to: a value, or the traceback of what it raised."""

    value: Any
    failure: str = ""
    is_worn: bool = False
    """Whether this process must be replaced."""


def pack(message: object) -> bytes:
    """Return a message as it crosses the pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the operator ends this one
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write between two results
        serve(sys.stdin.buffer, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the requests of one stream on another."""
    hardware = BUILTIN.with_rows(_read(requests) or ())
    gc.freeze()
    while (request := _read(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, request.cpu_seconds)  # SIGPROF ends the process
        result = run(request, hardware)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        answers.write(pack(result))
        answers.flush()


def run(request: Request, hardware: Hardware) -> Result:
    """Do one task."""
    check = partial(check_job, hardware=hardware)
    try:
        match request.arguments:
            case (bytes(body),):
                value: Any = examine(body, check)
            case (name, spec):
                value = check(name, spec)
            case _:
                raise ValueError("a task has one or two arguments")
    except NotAReviewError as error:
        return Result(error)
    except Exception:  # noqa: BLE001  # the operator logs and reports it
        return Result(None, traceback.format_exc())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Result(value, is_worn=most > MAX_KEPT_KIB)


def _read(stream: BinaryIO) -> Any:
    """Return the next message; None where the stream ended."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return pickle.loads(body) if len(body) == length else None  # noqa: S301  # the operator wrote it
