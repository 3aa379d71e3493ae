"""Control signals from the agent, held until the training loop sends them with its next step."""

import threading
from collections.abc import Iterable
from queue import Empty, SimpleQueue

from trainingjob_agent.trainer_protocol import TraceOrder
from trainingjob_trainer.state import Signal


class ControlSignals:
    """Signals that the command thread sets and the training loop reads."""

    def __init__(self) -> None:
        """Start without signals."""
        self._exit = threading.Event()
        self._rescale = threading.Event()
        self._inject_nan = threading.Event()
        self._traces: SimpleQueue[TraceOrder] = SimpleQueue()
        self._live_slices: frozenset[int] = frozenset()
        self._knows_live_slices = threading.Event()

    def request_exit(self) -> None:
        """Request a save at the next step boundary and then an exit. The signal stays set."""
        self._exit.set()

    def request_rescale(self) -> None:
        """Request an exit to a world that includes all hosts of this one. The signal stays set."""
        self._rescale.set()

    def inject_nan(self) -> None:
        """Request non-finite gradients for the next step only."""
        self._inject_nan.set()

    def request_trace(self, order: TraceOrder) -> None:
        """Request a trace of the next steps of this process."""
        self._traces.put(order)

    def take_trace(self) -> TraceOrder | None:  # None: no trace is requested
        """Return the oldest requested trace, and clear it."""
        try:
            return self._traces.get_nowait()
        except Empty:
            return None

    def set_live_slices(self, slices: Iterable[int]) -> None:
        """Set the slices whose replicas are in a round."""
        self._live_slices = frozenset(slices)
        self._knows_live_slices.set()

    def wait_for_live_slices(self) -> frozenset[int]:
        """Return the slices whose replicas are in a round, as soon as the operator has sent them once.

        A replica that took no news for no slices would begin a round that the others have almost trained.
        """
        self._knows_live_slices.wait()
        return self._live_slices

    @property
    def exit_signal(self) -> Signal:
        """Return EXIT if an exit with a save was requested, without clearing the request."""
        return Signal.EXIT if self._exit.is_set() else Signal.NONE

    def take_signals(self) -> Signal:
        """Return the signals for the next step, and clear INJECT_NAN."""
        signals = self.exit_signal
        signals |= Signal.RESCALE if self._rescale.is_set() else Signal.NONE
        if self._inject_nan.is_set():
            self._inject_nan.clear()
            signals |= Signal.INJECT_NAN
        return signals
