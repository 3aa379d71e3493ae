"""An API server with one job, its pods and their logs, which answers as a real one does."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from tests.support.builders import NAME, NAMESPACE, UID, job_manifest, make_plan, pod_manifest
from tests.support.command_line import CliRunner
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.entry_point import app

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
        self.patches: list[list[dict[str, Any]]] = []
        self.refusal: tuple[int, str] | None = None
        self.spec: dict[str, Any] = {}
        self.date = ""
        self.looks: int | None = None
        """After this many reads and edits of the job the credentials have expired; None: never."""

    def app(self) -> web.Application:
        app = web.Application()
        app.on_response_prepare.append(self.set_server_time)
        app.router.add_get(JOBS + "/{name}", self.job)
        app.router.add_patch(JOBS + "/{name}", self.edit)
        app.router.add_get(PODS, self.list_pods)
        app.router.add_get(PODS + "/{name}/log", self.log)
        return app

    async def set_server_time(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.date:
            response.headers["Date"] = self.date

    def refuse(self) -> web.Response | None:
        if self.looks == 0:
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        self.looks = None if self.looks is None else self.looks - 1
        return None

    async def job(self, request: web.Request) -> web.Response:
        if refused := self.refuse():
            return refused
        if request.match_info["name"] != NAME:
            return web.json_response({"kind": "Status", "details": {"name": request.match_info["name"]}}, status=404)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        job = job_manifest(PLAN, state)
        return web.json_response(job | {"spec": job["spec"] | self.spec})

    async def edit(self, request: web.Request) -> web.Response:
        if refused := self.refuse():
            return refused
        if self.refusal:
            status, words = self.refusal
            body = {"kind": "Status", "message": words, "details": {"name": NAME}}
            return web.json_response(body, status=status)
        self.patches.append(await request.json())
        return web.json_response(job_manifest(PLAN, self.states[0]))

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


async def call(*args: str) -> Any:
    result = await asyncio.to_thread(CliRunner().invoke, app, list(args), catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout.splitlines(), err=result.stderr)
