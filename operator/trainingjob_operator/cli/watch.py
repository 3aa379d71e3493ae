"""Polling of a job: each new state is printed as a line until the command has its exit code."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.errors import EXIT_NO_RESULT
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.remote_job import RemoteJob
from trainingjob_operator.core.stored_status import read_status

POLL_SECONDS = 2.0
"""Seconds between two reads of a job that a command watches. Commands that follow short events poll more often."""


@dataclass(frozen=True)
class PollResult:
    """The result of one poll: a line, printed if it differs from the previous one, and an exit code."""

    line: str = ""
    """Empty: nothing to print yet."""
    code: int | None = None
    """None: keep polling."""


async def poll_until_done(
    remote: RemoteJob,
    evaluate: Callable[[TrainingJobStatus], PollResult],
    *,
    interval: float,
    timeout_seconds: float | None,
    timeout_message: str,
) -> int:
    """Poll a job every `interval` seconds and print each new line with its time; return the exit code.

    After `timeout_seconds`, `timeout_message` is printed as an error. None: no time limit.

    Raises:
        CommandError: there is no such job, or the cluster cannot be reached.
    """
    last_line = ""
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                result = evaluate(read_status(await remote.read_job()))
                if result.line not in ("", last_line):
                    echo(f"{datetime.now():%H:%M:%S}  {result.line}")  # noqa: DTZ005  # the user's own clock
                    last_line = result.line
                if result.code is not None:
                    return result.code
                await asyncio.sleep(interval)
    except TimeoutError:
        echo(f"Error: {timeout_message}", err=True)
        return EXIT_NO_RESULT
