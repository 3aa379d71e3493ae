"""A job that is followed: what is new of it is told line by line, until there is an end to tell."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.cli.errors import NO_ANSWER
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.remote import Remote
from trainingjob_operator.core.remember import read_status


@dataclass(frozen=True)
class Look:
    """What one look at a job shows: a line to be told where it is another than before, and an exit code."""

    line: str = ""
    """Empty: there is nothing to tell yet."""
    code: int | None = None
    """None: it goes on."""


async def follow(
    remote: Remote, look: Callable[[TrainingJobStatus], Look], *, every: float, within: float | None, late: str
) -> int:
    """Look at a job every so many seconds and tell each new line with its time; return the exit code.

    After `within` seconds `late` is said instead; None: as long as it takes.

    Raises:
        CommandError: there is no such job, or the cluster cannot be asked.
    """
    told = ""
    try:
        async with asyncio.timeout(within):
            while True:
                seen = look(read_status(await remote.read_job()))
                if seen.line not in ("", told):
                    echo(f"{datetime.now():%H:%M:%S}  {seen.line}")  # noqa: DTZ005  # the user's own clock
                    told = seen.line
                if seen.code is not None:
                    return seen.code
                await asyncio.sleep(every)
    except TimeoutError:
        echo(f"Error: {late}", err=True)
        return NO_ANSWER
