"""Ctrl-C ends a command, whatever its event loop is about to do."""

import asyncio
import os
import signal

import pytest

from trainingjob_operator.cli.interrupts import run_interruptible


async def interrupt_and_sleep(cleaned_up: list[bool]) -> None:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        cleaned_up.append(True)


def test_an_interrupt_cancels_the_command_and_nothing_after_it() -> None:
    cleaned_up: list[bool] = []

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(interrupt_and_sleep(cleaned_up))

    assert cleaned_up == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_wakes_an_event_loop_that_is_about_to_sleep() -> None:
    async def read_wakeup_fd() -> int:
        descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(descriptor)
        return descriptor

    assert run_interruptible(read_wakeup_fd()) != -1


def test_a_cancellation_is_no_interrupt() -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(cancel())
