"""`trainingjob wait`: until a job is over, for scripts; what happens meanwhile is told line by line."""

import asyncio
from datetime import UTC, datetime

import typer

from trainingjob_operator.cli.errors import NO_ANSWER, NO_SUCCESS
from trainingjob_operator.cli.remote import Remote, Target, open_remote
from trainingjob_operator.cli.report import describe_job
from trainingjob_operator.core.remember import read_status

SECONDS_BETWEEN_LOOKS = 2.0


def wait_for_end(target: Target, timeout: float | None) -> int:
    """Print each change of a job's state until it is over; return the exit code.

    `timeout` in seconds; None: as long as it takes.

    Raises:
        CommandError: there is no such job, or the cluster cannot be asked.
    """
    return asyncio.run(_wait(target, timeout))


async def _wait(target: Target, seconds: float | None) -> int:
    async with open_remote(target) as remote:
        try:
            async with asyncio.timeout(seconds):
                return await _follow(remote, target.name)
        except TimeoutError:
            typer.echo(f"Error: {target.name} is not over yet, and --timeout has passed.", err=True)
            return NO_ANSWER


async def _follow(remote: Remote, name: str) -> int:
    told = ""
    while True:
        status = read_status(await remote.read_job())
        headline = describe_job(name, status, datetime.now(UTC))[0]
        if headline != told:
            typer.echo(f"{datetime.now():%H:%M:%S}  {headline}")  # noqa: DTZ005  # the user's own clock
            told = headline
        if status.completion_time is not None:
            return 0 if status.phase == "Succeeded" else NO_SUCCESS
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
