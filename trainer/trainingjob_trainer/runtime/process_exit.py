"""Immediate exit of a trainer process: the interpreter's orderly exit would abort the JAX world."""

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def exit_now(code: int) -> NoReturn:
    """Flush the output and exit with a code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Have Linux kill this process when its parent exits, even while this process is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
