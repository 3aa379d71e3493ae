"""`trainingjob status`: the state of a job on a cluster."""

import asyncio
from datetime import UTC, datetime

from rich.live import Live
from rich.text import Text

from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.printing import is_pipe_closed
from trainingjob_operator.cli.remote_job import RemoteJob, Target, open_remote_job
from trainingjob_operator.cli.report import describe_job
from trainingjob_operator.cli.watch import POLL_SECONDS
from trainingjob_operator.core.stored_status import read_status


def show_status(target: Target, console: SafeConsole, *, watch: bool) -> None:
    """Print a job's state once, or repeatedly until the job has ended.

    Raises:
        CommandError: there is no such job, or the cluster cannot be reached.
    """
    run_interruptible(_show(target, console, watch=watch))


async def _show(target: Target, console: SafeConsole, *, watch: bool) -> None:
    async with open_remote_job(target) as remote:
        view, is_over = await _poll(remote, target.name)
        if not watch:
            console.print(view, soft_wrap=True)
            return
        with Live(view, console=console, auto_refresh=False) as live:
            while not is_over and not is_pipe_closed():
                await asyncio.sleep(POLL_SECONDS)
                view, is_over = await _poll(remote, target.name)
                live.update(view, refresh=True)


async def _poll(remote: RemoteJob, name: str) -> tuple[Text, bool]:
    """Return a job's state as text, and whether the job has ended."""
    status = read_status(await remote.read_job())
    lines = describe_job(name, status, datetime.now(UTC))
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), status.completion_time is not None
