"""Orphans: children that end with their parent, and the others, which process 1 of a container inherits and reaps.

Outside a container, the agent becomes a child subreaper, so that both environments behave alike.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Container

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> bool:
    """Have Linux kill this process when its parent exits, even while this process is stopped; return whether it will.

    A program that replaces this one keeps that.
    """
    if sys.platform != "linux":
        return False
    refused: int = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return not refused


def become_subreaper() -> None:
    """Become the parent of every descendant whose parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Container[int]) -> None:
    """Reap every dead child except the `own` ones, which their `Child` objects reap.

    The kernel shows one dead child at a time, so an own dead child hides the others. Call this again after it is
    reaped.
    """
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid in own:
            return
        os.waitpid(dead.si_pid, os.WNOHANG)
