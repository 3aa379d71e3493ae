"""A program of `spec.program` as a child of the agent: it gets signals instead of commands."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from trainingjob_agent.program_reports import ProgramReports, read_line
from trainingjob_agent.state import EventReceived
from trainingjob_agent.trainer_process import Child
from trainingjob_agent.trainer_protocol import LEAVE_FILE_VARIABLE, AgentEvent, StartWorld

LOG = logging.getLogger(__name__)
LAUNCHER = (sys.executable, "-P", "-m", "trainingjob_agent.program_launcher")
MAX_SEARCH_SECONDS = 0.1
"""CPU seconds of the search in some lines above which the pattern is dropped: heartbeats matter more than steps."""


class ProgramChild(Child):
    """A child that becomes a program. Its standard input is empty once it runs, so it receives no commands."""

    _leave_file: Path | None = None  # None: it is not started yet
    _pattern: re.Pattern[str] | None = None  # None: the log names no steps
    _is_polling = False
    _reports = ProgramReports()

    def start(self, start: StartWorld) -> None:
        """Start the program in a world."""
        program = start.config.spec.command_program
        self._reports = ProgramReports(start.world.committed)
        if program and program.progress:
            self._pattern = re.compile(program.progress.pattern)
        super().start(start)

    def request_leave(self, *, moves: bool = False) -> None:
        """Request that it saves and exits: with a file if it looks for one, else with SIGTERM.

        Other processes of its group get no signal. `moves` is ignored: a program keeps no state in the memory of the
        pod.
        """
        del moves
        if self._is_polling and self._leave_file:
            self._leave_file.touch()
        elif self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def inject_nan(self) -> None:
        """Refuse: only the built-in trainer can change its gradients."""
        LOG.warning("no NaN is injected: a program computes its own gradients")

    def trace(self, name: str, steps: int) -> None:
        """Refuse: only the built-in trainer writes traces on request."""
        LOG.warning("no trace is written name=%s steps=%d: a program traces itself", name, steps)

    def close(self) -> None:
        """Kill it and release its resources."""
        super().close()
        if self._leave_file:
            self._leave_file.unlink(missing_ok=True)

    def _variables(self) -> dict[str, str]:
        self._leave_file = Path(tempfile.gettempdir()) / f"trainingjob-leave-{os.getpid()}-{self._number}"
        self._leave_file.unlink(missing_ok=True)
        return {LEAVE_FILE_VARIABLE: str(self._leave_file)}

    def _translate(self, event: AgentEvent) -> AgentEvent:
        if event.report is None:
            return event
        self._is_polling = self._is_polling or event.report.polls
        return self._reports.translate(event.report, asyncio.get_running_loop().time())

    def _read_lines(self, lines: list[bytes]) -> None:
        """Report the steps that lines of the log name."""
        if self._pattern is None:
            return
        start = time.thread_time()
        reports = [report for line in lines if (report := read_line(self._pattern, line))]
        if time.thread_time() - start > MAX_SEARCH_SECONDS * max(len(lines) / 100, 1):
            LOG.warning("the steps in the log are not read any more: spec.program.progress.pattern takes too long")
            self._pattern = None
        for report in reports:
            event = self._reports.translate(report, asyncio.get_running_loop().time())
            self._on_message(EventReceived(self._number, event))

    def _request_stacks(self) -> None:
        """Leave it alone: SIGUSR1 would end a program without a handler."""
