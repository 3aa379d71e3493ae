"""Control signals from the agent, held until the training loop sends them with its next step."""

import threading

from trainingjob_trainer.modelling.signature import Asked


class Asks:
    """Signals that the command thread sets and the training loop reads."""

    def __init__(self) -> None:
        """Start without signals."""
        self._leave = threading.Event()
        self._move = threading.Event()
        self._poison = threading.Event()

    def leave(self) -> None:
        """Request a save at the next step boundary and then an exit. The signal stays set."""
        self._leave.set()

    def move(self) -> None:
        """Request an exit to a world that includes all hosts of this one. The signal stays set."""
        self._move.set()

    def poison(self) -> None:
        """Request non-finite gradients for the next step only."""
        self._poison.set()

    @property
    def leaving(self) -> Asked:
        """Return LEAVE if an exit with a save was requested, without clearing the request."""
        return Asked.LEAVE if self._leave.is_set() else Asked.NOTHING

    def take(self) -> Asked:
        """Return the signals for the next step, and clear POISON."""
        asked = self.leaving
        asked |= Asked.MOVE if self._move.is_set() else Asked.NOTHING
        if self._poison.is_set():
            self._poison.clear()
            asked |= Asked.POISON
        return asked
