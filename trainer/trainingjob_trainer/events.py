"""The child's voice: events as JSON lines on the pipe that its agent reads, apart from its log."""

import os
import threading
from collections.abc import Mapping

from trainingjob_api.protocol import Phase
from trainingjob_trainer.wire import EVENTS_FD_VARIABLE, Event

ORPHANED = 3
"""Exit code of a child whose agent is gone: nobody reads it, people may see it."""


class Events:
    """Writes events, whole lines, from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self.phase: Phase | None = None
        """What this process does, as it was told; None: nothing was."""
        self.step: int | None = None
        """The newest finished step that was told; None: none yet."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Events":
        """Return the events of the pipe that the agent opened.

        Raises:
            ValueError: the variable is missing or is no number; the program was started by hand.
        """
        value = environment.get(EVENTS_FD_VARIABLE, "")
        if not value.isdigit():
            raise ValueError(f"{EVENTS_FD_VARIABLE} must be the number of an open file; an agent sets it.")
        return cls(int(value))

    def send(self, event: Event) -> None:
        """Write one event. A child that nobody listens to any more ends here."""
        if event.progress:
            self.step = event.progress.step
        line = event.model_dump_json(exclude_defaults=True).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except BrokenPipeError:
                os._exit(ORPHANED)

    def join(self, name: str) -> None:
        """Say that this process is about to enter what all processes of its world enter."""
        self.send(Event(entered=name))

    def enter(self, phase: Phase) -> None:
        """Say that a phase begins, unless it is the current one."""
        if phase is not self.phase:
            self.phase = phase
            self.send(Event(phase=phase))
