"""Events of the trainer process: JSON lines on the pipe that its agent reads, separate from the log."""

import os
import threading
from collections.abc import Mapping

from trainingjob_agent.trainer_protocol import EVENTS_FD_VARIABLE, AgentEvent
from trainingjob_api.protocol import Phase

EXIT_ORPHANED = 3
"""Exit code of a child without an agent. No program reads it; it helps a person who debugs a pod."""


class AgentEvents:
    """Writes events as whole lines, from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self.phase: Phase | None = None
        """The phase that was reported last. None: none yet."""
        self.step: int | None = None
        """The newest finished step that was reported. None: none yet."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "AgentEvents":
        """Return the events of the pipe that the agent opened.

        Raises:
            ValueError: the variable is missing or is not a number; the program was started by hand.
        """
        value = environment.get(EVENTS_FD_VARIABLE, "")
        if not value.isdecimal():
            raise ValueError(f"{EVENTS_FD_VARIABLE} must be the number of an open file; an agent sets it.")
        return cls(int(value))

    def send(self, event: AgentEvent) -> None:
        """Write one event, or exit if the agent no longer reads the pipe."""
        if event.progress:
            self.step = event.progress.step
        line = event.model_dump_json(exclude_defaults=True).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except BrokenPipeError:
                os._exit(EXIT_ORPHANED)

    def report_entry(self, name: str) -> None:
        """Report that this process is about to enter an operation that needs all processes of its world."""
        self.send(AgentEvent(entered=name))

    def enter_phase(self, phase: Phase) -> None:
        """Report that a phase begins, unless it is the current one."""
        if phase is not self.phase:
            self.phase = phase
            self.send(AgentEvent(phase=phase))
