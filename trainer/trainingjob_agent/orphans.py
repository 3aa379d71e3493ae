"""Reaping of orphans: process 1 inherits every orphan of its container.

Outside a container, the agent becomes a child subreaper, so that both environments behave alike.
"""

import ctypes
import os
from collections.abc import Container

PR_SET_CHILD_SUBREAPER = 36


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
