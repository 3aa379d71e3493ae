"""Run a command's coroutine so that Ctrl-C always ends it at once."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any


def run_interruptible[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, and end it at the first SIGINT.

    `asyncio.run` alone has no wake-up file descriptor for SIGINT: a signal that arrives just before the event loop
    sleeps is handled only at the loop's next event, which can be the timeout of a request.

    Raises:
        KeyboardInterrupt: a SIGINT cancelled the coroutine, which has cleaned up.
    """

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of `asyncio.run` is a task
        if threading.current_thread() is threading.main_thread():  # no other thread receives signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt, task)
        return await coroutine

    def interrupt(task: asyncio.Task[T]) -> None:
        received.append(signal.SIGINT)
        task.cancel()

    received: list[signal.Signals] = []
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if received:
            raise KeyboardInterrupt from None
        raise
