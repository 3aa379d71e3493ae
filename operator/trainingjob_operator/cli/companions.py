"""Processes that live no longer than the command that started them, however it ends."""

import ctypes
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def _load_prctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


_PRCTL = _load_prctl()


def _die_with_parent() -> None:
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)


DIE_WITH_PARENT: Callable[[], None] | None = _die_with_parent if _PRCTL else None
"""What a process does between fork and exec, so that Linux kills it when its parent is gone. None: not on Linux."""
