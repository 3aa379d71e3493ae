"""Worker process that checks jobs, so that no spec blocks the operator's event loop.

The worker reads requests from standard input and writes results to standard output, as length-prefixed pickles. Both
ends are this program; input of a peer is never unpickled. The first message holds the accelerators and presets of
the administrator.

If a request exceeds its CPU time limit, the kernel kills the worker. The operator detects the end of its output.
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
from pathlib import Path
from typing import Any, BinaryIO

from trainingjob_operator.core.catalog import AddedRows, Catalog
from trainingjob_operator.core.validation.validate import validate_job, validate_manifest
from trainingjob_operator.shell.admission_review import NotAReviewError
from trainingjob_operator.shell.review_evaluation import evaluate_review

NICENESS = 2
"""Lower priority than the operator's event loop on a busy node."""
MAX_DATA_BYTES = 320 * 1024 * 1024
"""Limit of this process' data segment; a request that needs more fails."""
MAX_RESIDENT_KIB = 96 * 1024
"""Peak memory above which the worker is replaced, since Python rarely returns memory."""
LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Request:
    """One task.

    The arguments are the body of a review and the watched namespaces, or the namespace, name and spec of a job.
    """

    arguments: tuple[Any, ...]
    cpu_seconds: float


@dataclass(frozen=True)
class Result:
    """Result of a task: a value, or the traceback of its exception."""

    value: Any
    failure: str = ""
    needs_replacement: bool = False
    """Whether the worker must be replaced because of its memory use."""


def encode_message(message: object) -> bytes:
    """Serialize a message for the pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Process requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the process group; the operator stops this process
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not corrupt the stream of results
        serve(sys.stdin.buffer, results)


def serve(requests: BinaryIO, results: BinaryIO) -> None:
    """Process requests from one stream and write the results to another."""
    catalog = (_read(requests) or AddedRows()).add()
    gc.freeze()
    while (request := _read(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, request.cpu_seconds)  # SIGPROF kills the process
        result = run(request, catalog)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        results.write(encode_message(result))
        results.flush()


def run(request: Request, catalog: Catalog) -> Result:
    """Run one task."""
    try:
        match request.arguments:
            case (bytes(body), namespaces):
                value: Any = evaluate_review(body, partial(validate_manifest, catalog=catalog), namespaces)
            case (str(namespace), name, spec):
                value = validate_job(name, spec, catalog, namespace)
            case _:
                raise ValueError("a task has two or three arguments")
    except NotAReviewError as error:
        return Result(error)
    except Exception:  # noqa: BLE001  # the operator logs the traceback
        return Result(None, traceback.format_exc())
    return Result(value, needs_replacement=peak_memory_kib() > MAX_RESIDENT_KIB)


def peak_memory_kib() -> int:
    """Return the peak resident memory of this program in KiB; 0: unknown.

    `getrusage` counts the memory of the parent that started this process, too: Linux keeps that peak across `exec`.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:  # only Linux has it
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _read(stream: BinaryIO) -> Any:
    """Return the next message; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return pickle.loads(body) if len(body) == length else None  # noqa: S301  # the operator wrote it
