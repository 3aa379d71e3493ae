"""A program of `spec.program` as a child of the agent: it gets signals instead of commands."""

import contextlib
import logging
import os
import signal
import sys

from trainingjob_agent.trainer_process import Child

LOG = logging.getLogger(__name__)
LAUNCHER = (sys.executable, "-m", "trainingjob_agent.program_launcher")


class ProgramChild(Child):
    """A child that becomes a program. Its standard input is empty once it runs, so it receives no commands."""

    def request_leave(self, *, moves: bool = False) -> None:
        """Request with SIGTERM that it saves and exits. Other processes of its group get no signal.

        `moves` is ignored: a program keeps no state in the memory of the pod.
        """
        del moves
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def inject_nan(self) -> None:
        """Refuse: only the built-in trainer can change its gradients."""
        LOG.warning("no NaN is injected: a program computes its own gradients")

    def trace(self, name: str, steps: int) -> None:
        """Refuse: only the built-in trainer writes traces on request."""
        LOG.warning("no trace is written name=%s steps=%d: a program traces itself", name, steps)

    def _request_stacks(self) -> None:
        """Leave it alone: SIGUSR1 would end a program without a handler."""
