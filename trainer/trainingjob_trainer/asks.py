"""What an agent asks of its trainer, kept until the loop hands it on with its next step."""

import threading

from trainingjob_trainer.modelling.signature import Asked


class Asks:
    """Written by the thread that hears the agent, read by the loop."""

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self._leave = threading.Event()
        self._move = threading.Event()
        self._poison = threading.Event()

    def leave(self) -> None:
        """Ask to save at the next step boundary and to leave: from now on with every step."""
        self._leave.set()

    def move(self) -> None:
        """Ask to leave for a world that all hosts are in too: from now on with every step."""
        self._move.set()

    def poison(self) -> None:
        """Ask for gradients that are not finite: of the next step alone."""
        self._poison.set()

    @property
    def leaving(self) -> Asked:
        """Return LEAVE where that is asked for, as often as one looks."""
        return Asked.LEAVE if self._leave.is_set() else Asked.NOTHING

    def take(self) -> Asked:
        """Return what is to be asked with the next step."""
        asked = self.leaving
        asked |= Asked.MOVE if self._move.is_set() else Asked.NOTHING
        if self._poison.is_set():
            self._poison.clear()
            asked |= Asked.POISON
        return asked
