"""Fixtures of the agent's tests: a small config, a trainer without JAX, and a scripted operator."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from trainingjob_agent.host_environment import read_environment
from trainingjob_agent.supervisor import Supervisor
from trainingjob_api.protocol import REPORT_PATH, Answer, Directive, HostReport
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.runtime import EnvVar
from trainingjob_api.world import JobIdentity, Layout, RunConfig, World

type Launch = Callable[..., asyncio.Task[int]]

JOB_UID = "job-1"
SECRET = "8f1e0c2a-canary"  # it keeps nothing from anybody


@pytest.fixture(scope="session")
def run_config() -> RunConfig:
    spec = TrainingJobSpec.model_validate(
        {
            "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
            "model": {
                "vocabSize": 257,
                "embedDim": 8,
                "mlpDim": 8,
                "numLayers": 1,
                "numHeads": 1,
                "numKvHeads": 1,
                "headDim": 8,
            },
            "data": {"train": [{"name": "text", "path": "/text"}]},
            "training": {"steps": 10, "globalBatchSize": 2, "sequenceLength": 8},
            "optimizer": {"learningRate": 0.001},
            "checkpoint": {"uri": "/checkpoints/tiny"},
        }
    )
    layout = Layout(
        num_slices=1,
        hosts_per_slice=1,
        devices_per_host=1,
        ici=AxisDegrees(),
        dcn=AxisDegrees(),
        rows_per_shard=2,
        accumulation=1,
        padding_rows=0,
    )
    identity = JobIdentity(name="tiny", namespace="default", uid=JOB_UID)
    return RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))


@pytest.fixture
def variables(tmp_path: Path, run_config: RunConfig) -> dict[str, str]:
    """Return the environment variables of an agent on this machine."""
    config, token = tmp_path / "run.json", tmp_path / "token"
    config.write_text(run_config.model_dump_json(by_alias=True))
    token.write_text("secret\n")
    return {
        "TRAININGJOB_CONFIG": str(config),
        "TRAININGJOB_RENDEZVOUS": "http://127.0.0.1:1",
        "TRAININGJOB_TOKEN": str(token),
        "TRAININGJOB_POD": "pod-0",
        "TRAININGJOB_POD_UID": "uid-0",
        "TRAININGJOB_ADDRESS": "127.0.0.1",
        "TRAININGJOB_SLICE_OFFSET": "2",
        "TRAININGJOB_JOB_INDEX": "1",
        "TRAININGJOB_HOST": "0",
        "TRAININGJOB_TERMINATION_LOG": str(tmp_path / "termination.log"),
    }


@pytest.fixture
def fake_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return the command of a program that speaks the wire as the trainer does, and plays a part in each generation."""
    program = tmp_path / "fake_trainer.py"
    program.write_text(FAKE_TRAINER)

    def command(**parts: str) -> list[str]:
        monkeypatch.setenv("FAKE_TRAINER", json.dumps(parts))
        return [sys.executable, "-S", "-E", str(program)]

    return command


FAKE_TRAINER = """
import faulthandler, hashlib, json, os, signal, sys, time

faulthandler.register(signal.SIGUSR1)

parts = json.loads(os.environ["FAKE_TRAINER"])
events = int(os.environ["TRAININGJOB_EVENTS_FD"])

def tell(**event):
    os.write(events, json.dumps(event).encode() + b"\\n")

if parts.get("standby") == "broken":
    sys.exit("cannot import the trainer")
tell(ready=True)
start = json.loads(sys.stdin.readline() or "null")
if start is None:
    sys.exit(0)
if start["waits"]:
    if parts.get("shadow") == "broken":
        sys.exit("cannot connect")
    tell(waiting=True)
    start = json.loads(sys.stdin.readline() or "null")
    if start is None:
        sys.exit(0)
    print("takes over", flush=True)
generation = start["world"]["generation"]
part = parts.get(f"g{generation}", "train")
print(f"generation {generation} process {start['process']} plays {part}", flush=True)
tell(phase="connecting")
match part:
    case "count":
        sys.exit(f"asked for {start['config']['spec']['training']['steps']} steps")
    case "secret":
        sys.exit("the secret has the hash " + hashlib.sha256(start["programSecret"].encode()).hexdigest())
    case "leak":
        sys.exit(f"login failed with {os.environ['LOGIN']}")
    case "crash":
        raise RuntimeError("the matrix is singular")
    case "fail" | "fail and hang":
        tell(failure={"reason": "Data", "fatal": True, "message": "no text", "path": "spec.data"})
        if part == "fail":
            os._exit(3)
        time.sleep(600)
    case "abort":
        print("Terminating process because the JAX distributed service detected fatal errors.", flush=True)
        os.abort()
    case "replica":
        live_slices = json.loads(sys.stdin.readline())["liveSlices"]
        sys.exit(f"the slices {live_slices} are live")
    case "chatter":
        os.write(events, b"this is no event\\n")
    case "orphans":
        if os.fork() == 0:
            time.sleep(600)
        if (parent := os.fork()) == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/true", ["true"])
            os._exit(0)
        os.waitpid(parent, 0)
tell(phase="training", restored=0, entered="step 1")
tell(progress={"step": 1})
if part == "compute":
    while True:
        pass
if part == "finish":
    tell(progress={"step": 10}, committed=10, phase="done")
    os._exit(0)
line = sys.stdin.readline()
if not line:
    os._exit(0)
assert json.loads(line)["leave"]
if part == "deaf":
    time.sleep(600)
tell(progress={"step": 5}, committed=5, phase="left")
"""


class FakeOperator:
    """A scripted rendezvous, which answers at once when its directive changes.

    Otherwise it delays its answers for very long, so that every other report of an agent is caused by news.
    """

    def __init__(self) -> None:
        self.answer = Answer(directive=Directive.WAIT)
        self.reports: list[HostReport] = []
        self.tokens: list[str] = []
        self.takes = ""
        """The only credentials that are good. Empty: all are."""
        self.refuses_with = 0
        self.patience_seconds = 60.0
        self.hold_seconds = 10.0
        self.report_again_seconds = 3600.0
        self._changed = asyncio.Condition()

    async def say(
        self,
        directive: Directive,
        world: World | None = None,
        outcome: str = "",
        *,
        examine: bool = False,
        shadow: World | None = None,
        live_slices: tuple[int, ...] | None = None,
    ) -> None:
        async with self._changed:
            self.answer = Answer(
                directive=directive,
                world=world,
                outcome=outcome,
                collect_diagnostics=examine,
                shadow=shadow,
                live_slices=live_slices,
                program_secret=SECRET if world or shadow else "",
            )
            self._changed.notify_all()

    async def hear(self, holds: Callable[[HostReport], object], pod_uid: str = "uid-0") -> HostReport:
        """Return a pod's newest report once it fulfils a condition."""

        def newest() -> HostReport | None:
            return next((report for report in reversed(self.reports) if report.pod_uid == pod_uid), None)

        def is_heard() -> bool:
            report = newest()
            return report is not None and bool(holds(report))

        async with self._changed:
            try:
                async with asyncio.timeout(self.patience_seconds):
                    await self._changed.wait_for(is_heard)
            except TimeoutError:
                pytest.fail(f"the newest report of {pod_uid} is still {newest()}")
            report = newest()
            assert report is not None
            return report

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        async with self._changed:
            self.tokens.append(request.headers["Authorization"])
            refuses_with = 401 if self.takes not in ("", self.tokens[-1]) else self.refuses_with
            if refuses_with:
                self._changed.notify_all()
                return web.Response(status=refuses_with, text="come back later")
            self.reports.append(HostReport.model_validate_json(body))
            self._changed.notify_all()
            before = self.answer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.hold_seconds):
                    await self._changed.wait_for(lambda: self.answer is not before)
            answer = self.answer.model_copy(update={"report_again_seconds": self.report_again_seconds})
            return web.Response(text=answer.model_dump_json(by_alias=True))

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_post(REPORT_PATH, self.handle)
        return application


@pytest.fixture
def login(variables, run_config, monkeypatch) -> None:
    """Set a variable of the job from a Secret."""
    reference = EnvVar.model_validate({"name": "LOGIN", "secretKeyRef": {"name": "wandb", "key": "login"}})
    runtime = run_config.spec.runtime.model_copy(update={"env": (reference,)})
    config = run_config.model_copy(update={"spec": run_config.spec.model_copy(update={"runtime": runtime})})
    Path(variables["TRAININGJOB_CONFIG"]).write_text(config.model_dump_json(by_alias=True))
    monkeypatch.setenv("LOGIN", "correct-horse")


@pytest.fixture
async def operator(variables: dict[str, str]) -> AsyncIterator[FakeOperator]:
    """Return an operator that the agent's variables lead to."""
    operator = FakeOperator()
    async with TestServer(operator.application()) as server:
        variables["TRAININGJOB_RENDEZVOUS"] = f"http://127.0.0.1:{server.port}"
        yield operator
        await operator.say(Directive.WAIT)  # lets go of the answers held back


@pytest.fixture
async def launch(variables, operator, fake_trainer, tmp_path, monkeypatch) -> AsyncIterator[Launch]:
    """Return a function that starts an agent with scripted trainers, and returns its exit code's task."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    tasks: list[asyncio.Task[int]] = []

    def start(command: list[str] | None = None, **parts: str) -> asyncio.Task[int]:
        supervisor = Supervisor(read_environment(variables), command or fake_trainer(**parts))
        tasks.append(asyncio.create_task(supervisor.run()))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
