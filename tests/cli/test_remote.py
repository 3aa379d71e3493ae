"""`status` and `logs` against an API server that answers as a real one does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from tests.builders import NAME, NAMESPACE, UID, job_manifest, make_plan, pod_manifest
from trainingjob_api.status import TrainingJobStatus
from trainingjob_operator.cli import logs, status
from trainingjob_operator.cli.main import app

JOBS = f"/apis/trainingjob.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PLAN = make_plan()
RUNNING = TrainingJobStatus.model_validate({"phase": "Running", "progress": {"step": 7, "of": 100}})
ENDED = RUNNING.model_copy(update={"phase": "Succeeded", "completion_time": "2026-11-21T12:00:00Z"})


class FakeApi:
    """A job, its pods and their logs; the job takes the next of `states` each time that it is read."""

    def __init__(self) -> None:
        self.states = [RUNNING]
        self.pods = [pod_manifest(PLAN, 0, 0), pod_manifest(PLAN, 0, 1)]
        self.logs: dict[str, list[str]] = {pod["metadata"]["name"]: ["one", "two"] for pod in self.pods}
        self.queries: list[dict[str, str]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(JOBS + "/{name}", self.job)
        app.router.add_get(PODS, self.list_pods)
        app.router.add_get(PODS + "/{name}/log", self.log)
        return app

    async def job(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != NAME:
            return web.json_response({"kind": "Status", "details": {"name": request.match_info["name"]}}, status=404)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return web.json_response(job_manifest(PLAN, state))

    async def list_pods(self, request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == f"trainingjob.dev/job-uid={UID}"
        return web.json_response({"items": self.pods, "metadata": {"resourceVersion": "1"}})

    async def log(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        lines = self.logs.get(request.match_info["name"])
        if lines is None:
            words = {"kind": "Status", "message": "container trainer is waiting to start"}
            return web.json_response(words, status=400)
        return web.Response(text="".join(f"{line}\n" for line in lines))


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(status, "SECONDS_BETWEEN_LOOKS", 0.01)
    fake = FakeApi()
    async with TestServer(fake.app()) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
            "clusters": [{"name": "c", "cluster": {"server": str(server.make_url("/")).rstrip("/")}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield fake


async def call(*args: str) -> Any:
    result = await asyncio.to_thread(CliRunner().invoke, app, list(args), catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout.splitlines(), err=result.stderr)


async def test_status_tells_of_a_job(api: FakeApi) -> None:
    result = await call("status", NAME)

    assert (result.code, result.out) == (0, ["demo  Running", "step 7 of 100 (0 %)"])


async def test_status_watches_until_the_job_is_over(api: FakeApi) -> None:
    api.states = [RUNNING, RUNNING, ENDED]

    result = await call("status", NAME, "--watch")

    assert result.code == 0
    assert "demo  Succeeded" in result.out[0]
    assert len(api.states) == 1


async def test_logs_stand_behind_their_host(api: FakeApi) -> None:
    result = await call("logs", NAME, "--tail", "5")

    assert result.out == [
        "slice 0 host 0 | one",
        "slice 0 host 0 | two",
        "slice 0 host 1 | one",
        "slice 0 host 1 | two",
    ]
    assert api.queries == [{"tailLines": "5"}] * 2


async def test_logs_of_one_host(api: FakeApi) -> None:
    result = await call("logs", NAME, "--slice", "0", "--host", "1")

    assert result.out == ["slice 0 host 1 | one", "slice 0 host 1 | two"]


async def test_a_host_without_a_log_says_so(api: FakeApi) -> None:
    api.logs.pop(api.pods[0]["metadata"]["name"])

    result = await call("logs", NAME, "--host", "0")

    assert result.out == ["slice 0 host 0 | no log: container trainer is waiting to start"]


async def test_logs_are_followed_until_the_job_is_over(api: FakeApi) -> None:
    api.states = [RUNNING, RUNNING, ENDED]
    late = pod_manifest(PLAN, 1, 0)
    api.logs[late["metadata"]["name"]] = ["late"]
    api.pods = [api.pods[0], late]

    result = await call("logs", NAME, "--follow")

    assert set(result.out) == {"slice 0 host 0 | one", "slice 0 host 0 | two", "slice 1 host 0 | late"}
    first, again = [query for query in api.queries if "sinceTime" not in query], api.queries[-1]
    assert first == [{"follow": "true"}] * 2
    assert "sinceTime" in again  # a log that ended while its container runs goes on from there


UNREACHABLE = {
    "no such job": (["status", "other"], 'there is no TrainingJob "other" in namespace research.'),
    "no operator": (["status", NAME, "-n", "bare"], "this cluster does not know TrainingJobs: install the operator"),
    "no such host": (["logs", NAME, "--slice", "7"], 'TrainingJob "demo" has no such host now'),
    "no such kubeconfig": (["status", NAME, "--kubeconfig", "/nowhere"], "there is no kubeconfig at /nowhere."),
    "no such context": (["status", NAME, "--context", "mars"], "the cluster cannot be asked: no usable kubeconfig"),
}


@pytest.mark.parametrize(("args", "want"), UNREACHABLE.values(), ids=UNREACHABLE.keys())
async def test_what_cannot_be_found_is_said_in_words(args: list[str], want: str, api: FakeApi) -> None:
    result = await call(*args)

    assert result.code == 1
    assert result.err.startswith(f"Error: {want}")
