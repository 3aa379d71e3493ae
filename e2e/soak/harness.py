"""A job on local processes, with access to every part that a fault can affect."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from e2e.history import Line
from e2e.product import Manifest
from e2e.soak.api_faults import FlakyCluster
from e2e.soak.invariants import InvariantChecker
from e2e.soak.job import NAME, SHARED
from e2e.soak.report_proxy import ReportProxy
from e2e.soak.result_check import Outage
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.documents import Document
from trainingjob_operator.cli.local.container import Container
from trainingjob_operator.cli.local.local_backend import LocalBackend
from trainingjob_operator.cli.local.local_operator import LocalOperator
from trainingjob_operator.cli.local.local_spec import localize_spec
from trainingjob_operator.cli.local.resume import new_job
from trainingjob_operator.cli.local.runner import AGENT_EXIT_SECONDS, IMAGE, serve
from trainingjob_operator.cli.local.workspace import Workspace
from trainingjob_operator.cli.validate_command import require_valid
from trainingjob_operator.core.stored_status import read_status
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.render.volumes import CACHE_FOLDER
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.rendezvous import route_reports

POLL_SECONDS = 0.05
SECRET = "known to the operators of a soak"  # not a real secret
UID = "3f0c1f1e-5b0a-4f0e-9a53-0c2f7c5d1a10"
"""The same UID for all jobs, so that they share compiled programs. Each job has its own folder."""
NUM_SLICES = 2
API_FAILURE_RATE = 0.3
"""Probability that a call fails while the API server fails. A write can fail before and after its effect."""


class StateTimeoutError(Exception):
    """An awaited state did not occur in time. The text describes the job."""


class JobHarness:
    """One job, with its operators, processes, files and clocks exposed to fault injection."""

    def __init__(
        self,
        spec: Manifest,
        folder: Path,
        cache: Path,
        random: Random,
        away_seconds: float,
        note: Callable[[str], None],
    ) -> None:
        """Prepare a job below `folder`; nothing runs yet. `note` receives lines for the job's log."""
        content = {"apiVersion": "trainingjob.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": NAME}}
        plan, _ = require_valid(Document("the soak's job", {**content, "spec": spec}))
        self.spec = localize_spec(plan.spec, None)
        self.random = random
        self.checker = InvariantChecker()
        self.status = TrainingJobStatus()
        self.skew = 0.0
        self.api_fails = False
        self.damaged: set[int] = set()
        """Inodes of the folders of damaged saved steps."""
        self.outages: list[Outage] = []
        """Times in which no trainer could write."""
        self.latest = self.last = datetime.min.replace(tzinfo=UTC)
        """The latest and the last time of day that an operator has read before the job ended."""
        self.begun = self.ended = 0.0
        """Times of the first status and of the final one, by the monotonic clock."""
        self._lines: list[Line] = []
        self._lines_end = 0
        self._note = note
        self._workspace = Workspace(folder)
        self._cache = cache
        self._away_seconds = away_seconds
        self._url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the job while the context lasts; kill all its processes at the end."""
        with self._workspace.locked():
            volumes = {CACHE_FOLDER: self._cache, SHARED: self.shared}
            self.shared.mkdir(parents=True, exist_ok=True)
            job = new_job(NAME, self.spec, UID, datetime.now(UTC))
            self.machine = LocalBackend(
                job,
                volumes,
                self._workspace,
                notify=self.wake,
                save_job=self._save,
                emit=lambda event: self._note(f"{event.reason}: {event.message}"),
                host_return_seconds=self._away_seconds,
            )
            self.report_proxy = ReportProxy(self.machine, self.random, self.checker.record_report)
            async with serve(route_reports(self.report_proxy.report)) as self._url, self.machine.controllers.running():
                self.start_operator()
                try:
                    yield
                finally:
                    for operator in tuple(self.report_proxy.operators):
                        await self.stop_operator(operator)

    @property
    def shared(self) -> Path:
        """Return the folder behind the job's shared volume."""
        return self._workspace.root / "volumes" / "shared"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the saved steps."""
        return self.shared / NAME

    @property
    def has_ended(self) -> bool:
        """Return whether the job's completion is recorded."""
        return self.status.completion_time is not None

    def now(self) -> datetime:
        """Return the time of day as the operators see it."""
        now = datetime.now(UTC) + timedelta(seconds=self.skew)
        if not self.has_ended:
            self.last, self.latest = now, max(self.latest, now)
        return now

    def start_operator(self) -> LocalOperator:
        """Start an operator whose only knowledge is the state in the API server."""
        metadata = self.machine.cluster.job["metadata"]
        key = metadata["namespace"], metadata["name"]
        settings = RenderSettings(trainer_image=IMAGE, rendezvous_url=self._url, ca_pem="")

        def fail_at_random() -> None:
            if operator not in self.report_proxy.operators:
                raise ClusterUnavailableError("this operator is gone")
            if self.api_fails and self.random.random() < API_FAILURE_RATE:
                raise ClusterUnavailableError("the API server is away")

        api = FlakyCluster(self.machine.cluster, fail_at_random)
        operator = LocalOperator(key, api, self.machine, lambda: settings, self.now, lambda: self.skew, SECRET)
        self.report_proxy.operators.append(operator)
        self.report_proxy.notify_change()
        operator.start()
        return operator

    async def stop_operator(self, operator: LocalOperator) -> None:
        """Kill an operator with its in-memory state; its pending writes are lost."""
        if operator in self.report_proxy.operators:
            self.report_proxy.operators.remove(operator)
            self.report_proxy.notify_change()
            await operator.stop()

    def containers(self) -> list[tuple[int, Container]]:
        """Return the running containers with their slice numbers."""
        controllers = self.machine.controllers
        return [(number, container) for number in range(NUM_SLICES) for container in controllers.containers_of(number)]

    def pods(self) -> list[Manifest]:
        """Return the running pods."""
        return self.machine.controllers.running_pods()

    def wake(self) -> None:
        """Trigger a reconciliation by every operator, as an edit does."""
        for operator in self.report_proxy.operators:
            operator.wake()

    def lines(self) -> list[Line]:
        """Return the trainers' training lines in the order written. Each call reads only the new part of the file."""
        path = self.checkpoints / "metrics/metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._lines_end)
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._lines_end += len(whole)
            self._lines += [line for line in map(json.loads, whole.splitlines()) if "loss" in line]
        return self._lines

    async def wait_for(self, what: str, is_there: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, or the job has ended.

        Raises:
            StateTimeoutError: neither happened in time.
        """
        await _poll(what, lambda: is_there() or self.has_ended, seconds, self.describe)

    async def wait_for_exit(self) -> None:
        """Let the hosts of an ended job exit by themselves. The context kills the rest."""
        with contextlib.suppress(StateTimeoutError):
            await _poll("", lambda: not self.machine.controllers.num_containers, AGENT_EXIT_SECONDS, str)

    def describe(self) -> str:
        """Return a summary of the job's state."""
        status, checker = self.status, self.checker
        running = next((condition.message for condition in status.conditions if condition.type == "Running"), "")
        world = status.world.generation if status.world else 0
        return (
            f"{status.phase} ({status.display.reason}: {running}), generation {world}, step {checker.highest}, "
            f"saved {checker.committed}, {self.machine.controllers.num_containers} containers"
        )

    def _save(self, job: Manifest) -> None:
        self._workspace.save_job(job)
        before, self.status = self.status, read_status(job)
        if before != self.status:
            self.checker.record_status(before, self.status)
        self.begun = self.begun or (time.monotonic() if self.status.start_time else 0.0)
        if not before.completion_time:
            self.ended = time.monotonic()


async def _poll(what: str, is_there: Callable[[], bool], seconds: float, describe: Callable[[], str]) -> None:
    for _ in range(round(seconds / POLL_SECONDS)):
        if is_there():
            return
        await asyncio.sleep(POLL_SECONDS)
    raise StateTimeoutError(f"waited {seconds:.0f} s for {what}; {describe()}")


def list_trainers(container: Container) -> list[int]:
    """Return the trainer processes of an agent: the active one first, then the standbys by age."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            name, _, rest = path.read_text().rpartition(") ")
            fields = rest.split()
            if int(fields[1]) == container.pid and fields[0] != "Z":
                found.append(("(world " not in name, int(fields[19]), int(path.parent.name)))
    return [pid for *_, pid in sorted(found)]


def send_signal(number: signal.Signals, *pids: int) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
