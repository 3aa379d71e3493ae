"""A local run: the operator's own code over processes of this machine.

Reconciler, hub, rendezvous and agents are the same as on a cluster. Only their surroundings differ: `LocalCluster`
instead of the API server, plain HTTP on the loopback device, one job.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from aiohttp import web

from trainingjob_operator.cli.local.local_backend import LocalBackend
from trainingjob_operator.cli.local.local_operator import LocalOperator
from trainingjob_operator.cli.local.path_translation import Mounts
from trainingjob_operator.cli.local.run_events import describe_event, describe_status_change, read_run_progress
from trainingjob_operator.cli.local.view import View
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.core.catalog import BUILTIN, Catalog
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.report.job_events import JobEvent
from trainingjob_operator.core.report.situation import Stage
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.rendezvous import route_reports

LOOPBACK = "127.0.0.1"
IMAGE = "this-machine"
"""Placeholder for the image of pods, which run the installed programs."""
REFRESH_SECONDS = 0.25
"""Seconds between two updates of the view, which read the memory of this process."""
AGENT_EXIT_SECONDS = 15.0
"""Seconds that agents may take to exit after the job has ended."""


@dataclass(frozen=True)
class ScheduledKill:
    """A slice to kill, as in a power failure, when the job reaches a step."""

    slice: int
    step: int


async def run_job(
    job: Manifest,
    volumes: Mounts,
    workspace: Workspace,
    view: View,
    faults: Sequence[ScheduledKill] = (),
    catalog: Catalog = BUILTIN,
) -> Manifest:
    """Run a job until it has ended or the user stops it; return its final state.

    `volumes` maps mount paths to folders. The caller must hold the lock of `workspace`.
    """
    return await Runner(job, volumes, workspace, view, faults, catalog).run()


class Runner:
    """Runs one job until it has ended, has saved after an interrupt, or is interrupted again."""

    def __init__(
        self,
        job: Manifest,
        volumes: Mounts,
        workspace: Workspace,
        view: View,
        faults: Sequence[ScheduledKill],
        catalog: Catalog = BUILTIN,
    ) -> None:
        """Prepare a job; nothing runs yet."""
        metadata = job["metadata"]
        self._workspace = workspace
        self._view = view
        self._faults = sorted(faults, key=lambda fault: fault.step, reverse=True)
        self._uid: str = metadata["uid"]
        self._namespace: str = metadata["namespace"]
        self._status = read_status(job)
        self._backend = LocalBackend(
            job, volumes, workspace, notify=self._wake, save_job=self._save, emit=self._report_event
        )
        key = metadata["namespace"], metadata["name"]
        self._operator = LocalOperator(
            key,
            self._backend.cluster,
            self._backend,
            self._render_settings,
            secret=workspace.read_secret(),
            catalog=catalog,
        )
        self._url = ""
        self._stop = asyncio.Event()

    async def run(self) -> Manifest:
        """Run the job; return its final state."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_interrupt)
        server = serve(route_reports(self._operator.rendezvous.report))
        async with server as self._url, self._backend.controllers.running():
            self._operator.start()
            await self._watch()
            await self._operator.stop()
        return self._backend.cluster.job

    async def _watch(self) -> None:
        """Show the progress and inject the faults until the run is over."""
        started_at = time.monotonic()
        ended_at = None
        while not self._stop.is_set():
            now = time.monotonic()
            snapshot = read_run_progress(self._status, self._operator.hub.heartbeat_state((self._namespace, self._uid)))
            self._view.show_progress(snapshot, now - started_at)
            while self._faults and snapshot.step >= self._faults[-1].step:
                self._backend.controllers.kill_slice(self._faults.pop().slice)
            if self._is_over():
                ended_at = ended_at or now
                if not self._backend.controllers.num_containers or now - ended_at > AGENT_EXIT_SECONDS:
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), REFRESH_SECONDS)

    def _is_over(self) -> bool:
        return self._status.completion_time is not None or (self._is_stopping and self._status.phase == Stage.SUSPENDED)

    @property
    def _is_stopping(self) -> bool:
        return bool(self._backend.cluster.job["spec"].get("suspend"))

    def _handle_interrupt(self) -> None:
        """Save and stop; stop at once on a second interrupt, or if the run is over."""
        if self._is_stopping or self._is_over():
            self._stop.set()
            return
        self._view.print_line("saving and stopping; press Ctrl-C again to stop without a save")
        self._backend.cluster.edit(suspend=True)
        self._wake()

    def _wake(self) -> None:
        self._operator.wake()

    def _save(self, job: Manifest) -> None:
        self._workspace.save_job(job)
        before, self._status = self._status, read_status(job)
        for line in describe_status_change(before, self._status):
            self._print_with_time(line)

    def _report_event(self, event: JobEvent) -> None:
        if line := describe_event(event, self._status):
            self._print_with_time(line)

    def _print_with_time(self, line: str) -> None:
        self._view.print_line(f"{datetime.now().astimezone():%H:%M:%S}  {line}")

    def _render_settings(self) -> RenderSettings:
        return RenderSettings(trainer_image=IMAGE, rendezvous_url=self._url, ca_pem="")


@contextlib.asynccontextmanager
async def serve(app: web.Application) -> AsyncIterator[str]:
    """Serve on a free port of the loopback device while the context lasts; yield the address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://{LOOPBACK}:{port}"
    finally:
        await runner.cleanup()
