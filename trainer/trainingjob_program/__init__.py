"""Reports of a program to the agent of its host: three optional calls, without any dependency.

Without an agent, as on a laptop, the calls do nothing and `should_leave` returns False. They may be called from any
thread. A program in another language writes the same lines: JSON objects to the file descriptor that the variable
TRAININGJOB_EVENTS_FD names, such as `{"report": {"step": 12, "loss": 2.5}}` and `{"report": {"saved": 10}}`.
"""

import json
import os
import threading
from pathlib import Path

EVENTS_FD_VARIABLE = "TRAININGJOB_EVENTS_FD"
LEAVE_FILE_VARIABLE = "TRAININGJOB_LEAVE_FILE"
_lock = threading.Lock()
_is_polling = False


def report_step(step: int, loss: float | None = None) -> None:
    """Report a finished step, counted from 1, and its loss. One process or all of them may report it.

    The operator derives progress, goodput and hangs from it, and lets a smaller world grow again.
    """
    report: dict[str, float] = {"step": int(step)}
    if loss is not None and abs(float(loss)) < float("inf"):
        report["loss"] = float(loss)
    _send(report)


def report_saved(step: int) -> None:
    """Report that a step is completely saved, so that any later process can resume from it."""
    _send({"saved": int(step)})


def should_leave() -> bool:
    """Return whether the program must save and exit with 0 now, because the operator forms another world.

    The first call replaces SIGTERM, so call it before the first step. Processes learn of a request at different steps:
    let them agree, for example with `jax.experimental.multihost_utils.process_allgather`.
    """
    global _is_polling  # noqa: PLW0603  # the state of the process
    path = os.environ.get(LEAVE_FILE_VARIABLE)
    if path is None:
        return False
    if not _is_polling:
        _is_polling = True
        _send({"polls": True})
    return Path(path).exists()


def _send(report: dict[str, float]) -> None:
    descriptor = os.environ.get(EVENTS_FD_VARIABLE)
    if descriptor is None:
        return
    line = json.dumps({"report": report}).encode() + b"\n"
    with _lock:
        try:
            while line:
                line = line[os.write(int(descriptor), line) :]
        except OSError:  # the program has closed the file, or the agent is gone
            os.environ.pop(EVENTS_FD_VARIABLE, None)
