"""A local run: the operator's own code over processes of this machine, from the first process to the last.

The same reconciler, hub and rendezvous as in a cluster, the same agents as in a pod. Only what is around them differs:
`LocalCluster` in the place of the API server, plain HTTP on the loopback device, one job.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from aiohttp import web

from trainingjob_operator.cli.local.local_operator import LocalOperator
from trainingjob_operator.cli.local.machine import Machine
from trainingjob_operator.cli.local.narrate import take_snapshot, tell_change, tell_happening
from trainingjob_operator.cli.local.paths import Mounts
from trainingjob_operator.cli.local.view import View
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.remember import read_status
from trainingjob_operator.core.running.telling.announce import Happening
from trainingjob_operator.core.running.telling.situation import Stage
from trainingjob_operator.render.settings import RenderSettings
from trainingjob_operator.shell.rendezvous import route_reports

LOOPBACK = "127.0.0.1"
IMAGE = "this-machine"
"""Pods name an image; here it is whatever is installed."""
SECONDS_BETWEEN_LOOKS = 0.25
FAREWELL_SECONDS = 15.0
"""How long agents may take to end after the job did."""


@dataclass(frozen=True)
class Fault:
    """A slice that is to be killed, as if its power went, when a step is reached."""

    slice: int
    step: int


async def run_job(
    job: Manifest, volumes: Mounts, workspace: Workspace, view: View, faults: Sequence[Fault] = ()
) -> Manifest:
    """Run a job until it is over or the user stops it; return it as it is then.

    `volumes` has the folder behind each mount path; `workspace` must be held.
    """
    return await Runner(job, volumes, workspace, view, faults).run()


class Runner:
    """Runs one job until it is over, or was asked to stop and has saved, or was told to stop at once."""

    def __init__(
        self, job: Manifest, volumes: Mounts, workspace: Workspace, view: View, faults: Sequence[Fault]
    ) -> None:
        """Take over a job; nothing runs yet."""
        metadata = job["metadata"]
        self._workspace = workspace
        self._view = view
        self._faults = sorted(faults, key=lambda fault: fault.step, reverse=True)
        self._uid: str = metadata["uid"]
        self._namespace: str = metadata["namespace"]
        self._status = read_status(job)
        self._machine = Machine(job, volumes, workspace, notify=self._wake, save_job=self._save, emit=self._tell)
        key = metadata["namespace"], metadata["name"]
        self._operator = LocalOperator(
            key, self._machine.cluster, self._machine, self._render_settings, secret=workspace.read_secret()
        )
        self._url = ""
        self._stop = asyncio.Event()

    async def run(self) -> Manifest:
        """Run the job; return it as it is at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt)
        server = serve(route_reports(self._operator.rendezvous.report))
        async with server as self._url, self._machine.controllers.running():
            self._operator.start()
            await self._watch()
            await self._operator.stop()
        return self._machine.cluster.job

    async def _watch(self) -> None:
        """Show how the run goes, until it is over."""
        begun = time.monotonic()
        ended = None
        while not self._stop.is_set():
            now = time.monotonic()
            snapshot = take_snapshot(self._status, self._operator.hub.hearing((self._namespace, self._uid)))
            self._view.show(snapshot, now - begun)
            while self._faults and snapshot.step >= self._faults[-1].step:
                self._machine.controllers.kill_slice(self._faults.pop().slice)
            if self._is_over():
                ended = ended or now
                if not self._machine.controllers.num_containers or now - ended > FAREWELL_SECONDS:
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), SECONDS_BETWEEN_LOOKS)

    def _is_over(self) -> bool:
        return self._status.completion_time is not None or (
            self._is_asked_to_stop and self._status.phase == Stage.SUSPENDED
        )

    @property
    def _is_asked_to_stop(self) -> bool:
        return bool(self._machine.cluster.job["spec"].get("suspend"))

    def _interrupt(self) -> None:
        """Save and stop; at once when asked again, or when there is nothing that could be saved."""
        if self._is_asked_to_stop or self._is_over():
            self._stop.set()
            return
        self._view.say("saving and stopping; press Ctrl-C again to stop without a save")
        self._machine.cluster.edit(suspend=True)
        self._wake()

    def _wake(self) -> None:
        self._operator.wake()

    def _save(self, job: Manifest) -> None:
        self._workspace.save_job(job)
        before, self._status = self._status, read_status(job)
        for line in tell_change(before, self._status):
            self._say(line)

    def _tell(self, happening: Happening) -> None:
        if line := tell_happening(happening, self._status):
            self._say(line)

    def _say(self, line: str) -> None:
        self._view.say(f"{datetime.now().astimezone():%H:%M:%S}  {line}")

    def _render_settings(self) -> RenderSettings:
        return RenderSettings(trainer_image=IMAGE, rendezvous_url=self._url, ca_pem="")


@contextlib.asynccontextmanager
async def serve(app: web.Application) -> AsyncIterator[str]:
    """Serve on a free port of the loopback device while the context lasts; give the address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://{LOOPBACK}:{port}"
    finally:
        await runner.cleanup()
