"""Requests to the store of a job, by a program of the trainer: the agent itself has no client of object stores.

The program prints an answer, because its exit code may be lost: the agent reaps all processes of the container.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from trainingjob_agent.world_environment import without_world_variables

PROGRAM = (sys.executable, "-P", "-m", "trainingjob_trainer.store.agent_requests")
CACHE_PROGRAM = (sys.executable, "-P", "-m", "trainingjob_trainer.runtime.jax_cache")
DONE = "done"
"""The answer to a request that succeeded."""
MAX_MESSAGE_CHARACTERS = 300


def write_text(root: str, name: str, text: str) -> str:
    """Write an object below the root of a store; return the reason if that fails, empty: done."""
    return _run(PROGRAM, "write", root, name, text=text)


def corrupt_newest_checkpoint(root: str) -> str:
    """Flip a bit in the largest file of the newest checkpoint; return the reason if that fails, empty: done."""
    return _run(PROGRAM, "corrupt", root)


def synchronize_cache(root: str, folder: str, secret: str) -> str:
    """Copy entries of JAX's cache between a folder of this host and a store: to each side those that it lacks.

    Return the reason if that fails, empty: done.
    """
    return _run(CACHE_PROGRAM, root, folder, text=secret)


def _run(program: Sequence[str], *arguments: str, text: str = "") -> str:
    """Return the reason for which a request fails, empty: it has succeeded. A hanging store is awaited."""
    try:
        ended = subprocess.run(
            (*program, *arguments),
            input=text.encode(errors="replace"),
            capture_output=True,
            check=False,
            env=without_world_variables(os.environ),
        )
    except OSError as error:
        return f"no process can be started: {error.strerror}"
    answers = ended.stdout.decode(errors="replace").splitlines() or ended.stderr.decode(errors="replace").splitlines()
    answer = answers[-1][:MAX_MESSAGE_CHARACTERS] if answers else "its program ended without an answer"
    return "" if answer == DONE else answer
