"""Control signals of an agent to its trainer: when the loop receives them, and how often."""

from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.state import Signal


def test_to_leave_is_asked_with_every_step_from_then_on() -> None:
    asks = ControlSignals()
    assert asks.take_signals() is Signal.NONE

    asks.request_exit()

    assert [asks.take_signals(), asks.take_signals()] == [Signal.EXIT, Signal.EXIT]


def test_who_is_to_move_and_then_to_leave_asks_for_both() -> None:
    asks = ControlSignals()

    asks.request_rescale()
    assert [asks.take_signals(), asks.take_signals()] == [Signal.RESCALE, Signal.RESCALE]

    asks.request_exit()
    assert asks.take_signals() is Signal.RESCALE | Signal.EXIT


def test_one_step_alone_is_poisoned() -> None:
    asks = ControlSignals()
    asks.inject_nan()
    asks.request_exit()

    assert [asks.take_signals(), asks.take_signals()] == [Signal.EXIT | Signal.INJECT_NAN, Signal.EXIT]
