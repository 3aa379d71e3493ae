"""JAX's own cache of compiled programs for a program of `spec.program` whose run folder is in a bucket.

The cache is a folder of this host. A thread has it filled from the bucket when a world begins, and new entries copied
there. Training waits for none of it: a bucket that fails costs compilations, and one that hangs stops the thread only.
"""

import logging
import os
import threading

from trainingjob_agent.jax_cache_folder import list_complete
from trainingjob_agent.program_environment import CACHE_VARIABLE
from trainingjob_agent.store_requests import synchronize_cache
from trainingjob_agent.trainer_protocol import StartWorld

LOG = logging.getLogger(__name__)
CHECK_SECONDS = 15.0
"""Seconds between two looks for new entries in the folder."""


class ProgramCache:
    """Keeps the cache folder of this host and the run folder's bucket in step."""

    def __init__(self) -> None:
        self._start: StartWorld | None = None  # None: no world has begun
        self._is_due = threading.Event()
        self._is_closed = False

    def close(self) -> None:
        """End the thread after the copy that it makes; nothing waits for it."""
        self._is_closed = True
        self._is_due.set()

    def begin_world(self, start: StartWorld) -> None:
        """Fill the folder for a world, in the background. A folder that `runtime.env` names is the user's own."""
        is_used = start.compile_cache and start.program_secret and "://" in start.config.spec.checkpoint.uri
        if not is_used or os.environ.get(CACHE_VARIABLE):
            return
        is_running, self._start = self._start is not None, start
        self._is_due.set()
        if not is_running:
            # A daemon thread that is never joined: the bucket may hang.
            threading.Thread(target=self._run, name="program-cache", daemon=True).start()

    def _run(self) -> None:
        synchronized: frozenset[str] = frozenset()
        reported = ""
        while True:
            is_new_world = self._is_due.wait(CHECK_SECONDS)
            self._is_due.clear()
            if self._is_closed:
                return
            start = self._start
            assert start, "the thread starts with a world"  # noqa: S101
            problem, complete = "", synchronized
            try:
                complete = list_complete(start.compile_cache)
            except OSError as error:
                problem = f"{error.strerror}: {start.compile_cache}"
            if not problem and (is_new_world or complete - synchronized):
                problem = synchronize_cache(start.config.spec.checkpoint.uri, start.compile_cache, start.program_secret)
            if problem and problem != reported:
                LOG.warning("compiled programs are not kept in the bucket error=%s", problem)
            reported = problem
            synchronized = synchronized if problem else complete
