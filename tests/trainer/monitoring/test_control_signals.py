"""Control signals of an agent to its trainer: when the loop receives them, and how often."""

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest

from trainingjob_agent.trainer_protocol import Command, TraceOrder
from trainingjob_trainer import main
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.state import Signal


def test_drain_signal_is_sent_with_every_later_step() -> None:
    asks = ControlSignals()
    assert asks.take_signals() is Signal.NONE

    asks.request_exit()

    assert [asks.take_signals(), asks.take_signals()] == [Signal.EXIT, Signal.EXIT]


def test_resize_and_drain_signals_are_both_sent() -> None:
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


def test_a_replica_waits_for_the_first_live_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = ControlSignals()
    lines = [Command(live_slices=slices).model_dump_json(by_alias=True).encode() for slices in ((0, 2), ())]
    monkeypatch.setattr(main, "exit_now", lambda code: None)
    with ThreadPoolExecutor(1) as replica:
        found = replica.submit(asks.wait_for_live_slices)
        main._command_loop(BytesIO(lines[0] + b"\n"), asks, None)
        assert found.result() == {0, 2}

    main._command_loop(BytesIO(lines[1] + b"\n" + Command().model_dump_json().encode()), asks, None)
    assert asks.wait_for_live_slices() == set()


def test_each_requested_trace_is_taken_once_in_order() -> None:
    asks = ControlSignals()
    orders = [TraceOrder(name=name, steps=3) for name in ("a", "b")]
    for order in orders:
        asks.request_trace(order)

    assert [asks.take_trace() for _ in range(3)] == [*orders, None]
