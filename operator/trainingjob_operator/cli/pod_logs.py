"""`trainingjob logs`: the output of a job's hosts, each line prefixed with its slice and host."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

from trainingjob_operator.cli.errors import NoResultError
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.printing import is_pipe_closed
from trainingjob_operator.cli.remote_job import NoLogError, RemoteJob, Target, open_remote_job
from trainingjob_operator.cli.watch import POLL_SECONDS
from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.report.situation import Stage
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.shell.interfaces import ClusterUnavailableError


@dataclass(frozen=True)
class LogSelection:
    """The hosts and lines to print. None: all."""

    slice: int | None = None
    host: int | None = None
    tail: int | None = None

    def covers(self, pod: Pod) -> bool:
        """Return whether the selection includes a pod."""
        return self.slice in (None, pod.slice) and self.host in (None, pod.host)


def show_logs(target: Target, selection: LogSelection, write: Callable[[str], None], *, follow: bool) -> None:
    """Write the logs of a job's hosts, host by host. With `follow`, stream them until the job has ended.

    Raises:
        NoResultError: there is no such job or host, or the cluster cannot be reached.
    """
    run_interruptible(_show(target, selection, write, follow=follow))


async def _show(target: Target, selection: LogSelection, write: Callable[[str], None], *, follow: bool) -> None:
    async with open_remote_job(target) as remote:
        if follow:
            await _follow(remote, selection, write)
            return
        job = await remote.read_job()
        pods = [pod for pod in await remote.list_pods(job) if selection.covers(pod)]
        if not pods:
            raise NoResultError(f'TrainingJob "{target.name}" has no such host now; {_find_next_step(job)}')
        for pod in pods:
            try:
                await _copy(remote.log_lines(pod, tail=selection.tail), pod, write)
            except NoLogError as error:
                write(f"{_name(pod)} | no log: {error}")


def _find_next_step(job: Manifest) -> str:
    """Return where to look if a job has no host. The pods of a preparation are no hosts."""
    if read_status(job).phase != Stage.PREPARING:
        return "`trainingjob status` shows why."
    selector = f"{UID_LABEL}={get_text(job, 'metadata', 'uid')}"
    return (
        "its text is being tokenized. `kubectl logs --prefix --tail=-1 --namespace "
        f"{get_text(job, 'metadata', 'namespace')} --selector {selector}` prints the logs of these pods."
    )


async def _follow(remote: RemoteJob, selection: LogSelection, write: Callable[[str], None]) -> None:
    """Stream all logs concurrently, including those of new pods, until the job and every log have ended."""
    streams: dict[str, asyncio.Task[datetime | None]] = {}
    end_times: dict[str, datetime | None] = {}  # None: the stream had no line
    try:
        while True:
            job = await remote.read_job()
            pods = [pod for pod in await remote.list_pods(job) if selection.covers(pod)]
            for pod in pods:
                if pod.uid in streams and streams[pod.uid].done():
                    end_times[pod.uid] = await streams.pop(pod.uid) or end_times.get(pod.uid)
                if pod.uid not in streams and (pod.is_running or pod.uid not in end_times):
                    # After a container restart or a broken connection, the new stream begins where the old one ended.
                    since = end_times.get(pod.uid)
                    lines = remote.log_lines(pod, follow=True, tail=None if since else selection.tail, since=since)
                    streams[pod.uid] = asyncio.create_task(_copy_until_break(lines, pod, write, remote.now))
            if read_status(job).completion_time is not None or is_pipe_closed():
                break
            await asyncio.sleep(POLL_SECONDS)
        if not is_pipe_closed():
            await asyncio.gather(*streams.values())
    finally:  # no task group: it would wrap cluster errors in an exception group
        for task in streams.values():
            task.cancel()


async def _copy_until_break(
    lines: AsyncIterator[str], pod: Pod, write: Callable[[str], None], now: Callable[[], datetime]
) -> datetime | None:  # None: it had no line
    """Copy lines until the stream ends; return when it did. `_follow` opens a missing or broken log again.

    That time is the API server's: another clock would skip lines, or print them twice.
    """
    has_lines = False

    def write_line(line: str) -> None:
        nonlocal has_lines
        has_lines = True
        write(line)

    with contextlib.suppress(NoLogError, ClusterUnavailableError):
        await _copy(lines, pod, write_line)
    return now() if has_lines else None


async def _copy(lines: AsyncIterator[str], pod: Pod, write: Callable[[str], None]) -> None:
    async for line in lines:
        if is_pipe_closed():
            return
        write(f"{_name(pod)} | {line.rstrip('\r')}")


def _name(pod: Pod) -> str:
    return f"slice {pod.slice} host {pod.host}"
