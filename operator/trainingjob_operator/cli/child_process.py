"""Child processes that end with their parent, even if the parent is killed."""

import ctypes
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def _load_prctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


_PRCTL = _load_prctl()


def _kill_with_parent() -> None:
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)


KILL_WITH_PARENT: Callable[[], None] | None = _kill_with_parent if _PRCTL else None
"""`preexec_fn` that makes Linux kill the child when its parent ends. None on other systems."""
