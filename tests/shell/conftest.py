"""An API server in memory, over real HTTP: objects with UIDs and versions, conflicts, lists in pages, watches.

It has no controllers, admission or rights; a test sets `fault` to answer a request in its own way.
"""

import asyncio
import contextlib
import copy
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from tests.support.running_operator import SETTINGS, Running, end
from trainingjob_operator.core.names import JOB_LABEL, SLICE_OFFSET_LABEL, UID_LABEL
from trainingjob_operator.shell import assembly
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.assembly import Operator
from trainingjob_operator.shell.authentication import PodAuthenticator
from trainingjob_operator.shell.kinds import (
    ACCESS_REVIEW,
    CHILDREN,
    EVENT,
    LEASE,
    NODE,
    SECRET,
    TOKEN_REVIEW,
    TRAINING_JOB,
    WEBHOOK_CONFIGURATION,
    Kind,
)
from trainingjob_operator.shell.process import ListenPorts
from trainingjob_operator.shell.reflector import KINDS
from trainingjob_operator.shell.settings import Settings
from trainingjob_operator.shell.store import Store

NAMESPACE = Kind("v1", "Namespace", "namespaces", is_namespaced=False)
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", is_namespaced=False)
"""kopf looks for these two in every cluster."""

type Object = dict[str, Any]
type Fault = Callable[[web.Request], web.Response | None]
type Key = tuple[Kind, str, str]


class ApiServer:
    """Objects by kind, namespace and name, and the HTTP that Kubernetes speaks about them."""

    def __init__(self) -> None:
        self.kinds = {TRAINING_JOB, *CHILDREN, NODE, SECRET, EVENT, LEASE, WEBHOOK_CONFIGURATION, NAMESPACE, CRD}
        self.reviews: dict[str, Callable[[Object], Object]] = {}
        """Status of a TokenReview or SubjectAccessReview by its spec."""
        self.objects: dict[Key, Object] = {}
        self.requests: list[str] = []
        self.fault: Fault = lambda _: None
        self.page_size = 500
        self.version = 1000
        self._uids = itertools.count(1)
        self._watches: dict[Kind, list[asyncio.Queue[Object | None]]] = defaultdict(list)
        self._stalled: list[asyncio.Queue[Object | None]] = []
        self._history: list[tuple[int, Kind, Object]] = []
        """Every event and its version: a watch begins with those that came after the list that it follows."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    def put(self, kind: Kind, manifest: Object) -> Object:
        """Create or change an object as another client."""
        metadata = manifest["metadata"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        known = self.objects.get(key)
        self.version += 1
        uid = known["metadata"]["uid"] if known else metadata.get("uid") or f"uid-{next(self._uids)}"
        stored = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            **copy.deepcopy(manifest),
            "metadata": {**copy.deepcopy(metadata), "uid": uid, "resourceVersion": str(self.version)},
        }
        self.objects[key] = stored
        self._tell(kind, "MODIFIED" if known else "ADDED", stored)
        return copy.deepcopy(stored)

    def drop(self, kind: Kind, namespace: str, name: str, *, silently: bool = False) -> None:
        """Remove an object permanently; `silently`: without a watch event."""
        gone = self.objects.pop((kind, namespace, name))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        if not silently:
            self._tell(kind, "DELETED", gone)

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.objects.get((kind, namespace, name))

    def end_watches(self, kind: Kind | None = None) -> None:
        """End the watches of a kind; None: of all, the stalled ones too."""
        ended = itertools.chain(*self._watches.values(), self._stalled) if kind is None else self._watches.pop(kind, [])
        for queue in ended:
            queue.put_nowait(None)

    def is_watched(self, kind: Kind) -> bool:
        return bool(self._watches[kind])

    def stall_watches(self, kind: Kind) -> int:
        """Stop the events of open watches, as if their connections were dead; return the number of watches."""
        stalled = self._watches.pop(kind, [])
        self._stalled += stalled
        return len(stalled)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if (fault := self.fault(request)) is not None:
            return fault
        if request.path in ("/api", "/apis") or (found := self._locate(request.path)) is None:
            return self._discover(request.path)
        kind, namespace, name, subresource = found
        match request.method:
            case "GET" if "watch" in request.query:
                return await self._watch(request, kind, namespace)
            case "GET" if not name:
                return self._list(request, kind, namespace)
            case "GET":
                known = self.find(kind, namespace, name)
                return web.json_response(known) if known else not_found(kind, name)
            case "POST":
                return self._create(kind, namespace, await request.json())
            case "PUT":
                return self._replace((kind, namespace, name), subresource, await request.json())
            case "PATCH":
                return self._patch((kind, namespace, name), request, json.loads(await request.text()))
            case _:
                return self._delete((kind, namespace, name), json.loads(await request.text() or "{}"))

    def _locate(self, path: str) -> tuple[Kind, str, str, str] | None:
        for kind in {*self.kinds, TOKEN_REVIEW, ACCESS_REVIEW}:
            root = kind.path().removesuffix(kind.plural)
            parts = path.removeprefix(root).split("/")
            if not path.startswith(root):
                continue
            namespace = parts[1] if parts[0] == "namespaces" and len(parts) > 2 else ""
            plural, name, subresource, *_ = [*(parts[2:] if namespace else parts), "", ""]
            if plural == kind.plural:
                return kind, namespace, name, subresource
        return None

    def _discover(self, path: str) -> web.Response:
        versions = sorted({kind.api_version for kind in self.kinds})
        groups = [version.split("/") for version in versions if "/" in version]
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            listed = [{"groupVersion": f"{group}/{version}", "version": version} for group, version in groups]
            named = zip(groups, listed, strict=True)
            return web.json_response(
                {"groups": [{"name": g[0], "versions": [v], "preferredVersion": v} for g, v in named]}
            )
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if served := [{"groupVersion": f"{group}/{one}", "version": one} for group, one in groups if group == version]:
            return web.json_response({"kind": "APIGroup", "name": version, "versions": served})
        resources = [
            {
                "name": kind.plural,
                "kind": kind.name,
                "singularName": kind.name.lower(),
                "namespaced": kind.is_namespaced,
                "verbs": ["get", "list", "watch", "patch"],
            }
            for kind in self.kinds
            if version == kind.api_version
        ]
        return (
            web.json_response({"resources": resources})
            if resources
            else web.Response(status=404, text="404 page not found")
        )

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        start = int(request.query.get("continue", "0"))
        end = start + min(self.page_size, int(request.query.get("limit", "500")))
        found = [item for (k, ns, _), item in self.objects.items() if k == kind and namespace in ("", ns)]
        found = [item for item in found if selected(item, request.query)]
        items = [{key: value for key, value in item.items() if key not in ("apiVersion", "kind")} for item in found]
        metadata = {"resourceVersion": str(self.version), "continue": str(end) if end < len(items) else ""}
        return web.json_response({"kind": f"{kind.name}List", "metadata": metadata, "items": items[start:end]})

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        queue: asyncio.Queue[Object | None] = asyncio.Queue()
        since = int(request.query.get("resourceVersion", "0"))
        for version, of_kind, event in self._history:
            if of_kind == kind and version > since:
                queue.put_nowait(event)
        self._watches[kind].append(queue)
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await queue.get()) is not None:
            if selected(event["object"], request.query) and namespace in (
                "",
                event["object"]["metadata"].get("namespace"),
            ):
                await response.write(json.dumps(event).encode() + b"\n")
        return response

    def _create(self, kind: Kind, namespace: str, manifest: Object) -> web.Response:
        if kind.plural in self.reviews:
            return web.json_response({**manifest, "status": self.reviews[kind.plural](manifest["spec"])}, status=201)
        name = manifest["metadata"]["name"]
        if (kind, namespace, name) in self.objects:
            return failure(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        return web.json_response(self.put(kind, manifest), status=201)

    def _replace(self, key: Key, subresource: str, manifest: Object) -> web.Response:
        kind, _, name = key
        known = self.objects.get(key)
        if known is None:
            return not_found(kind, name)
        if manifest["metadata"].get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
            return failure(409, "Conflict", "the object has been modified")
        part = subresource or "spec"
        fields = [part] if subresource else [field for field in manifest if field not in ("metadata", "status")]
        return web.json_response(self.put(kind, {**known, **{field: manifest[field] for field in fields}}))

    def _patch(self, key: Key, request: web.Request, patch: Any) -> web.Response:
        kind, _, name = key
        known = self.objects.get(key)
        if request.content_type == "application/apply-patch+yaml":
            metadata = {**(known or {}).get("metadata", {}), **patch["metadata"]}
            return web.json_response(self.put(kind, {**(known or {}), **patch, "metadata": metadata}))
        if known is None:
            return not_found(kind, name)
        changed = copy.deepcopy(known)
        for operation in patch:
            *path, last = (part.replace("~1", "/") for part in operation["path"].strip("/").split("/"))
            target = changed
            for part in path:
                target = target[int(part)] if isinstance(target, list) else target[part]
            if operation["op"] == "test" and target.get(last) != operation["value"]:
                return failure(422, "Invalid", "the test failed")
            if operation["op"] == "remove":
                del target[last]
            else:
                target[last] = operation["value"]
        return web.json_response(self.put(kind, changed))

    def _delete(self, key: Key, options: Object) -> web.Response:
        kind, namespace, name = key
        known = self.objects.get(key)
        if known is None:
            return not_found(kind, name)
        if options.get("preconditions", {}).get("uid") not in (None, known["metadata"]["uid"]):
            return failure(409, "Conflict", "the UID in the precondition does not match")
        if kind.plural == "pods" and options.get("gracePeriodSeconds") != 0:  # a pod ends in its own time
            known["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return web.json_response(self.put(kind, known))
        self.drop(kind, namespace, name)
        return web.json_response({"kind": "Status", "status": "Success", "details": {"name": name}})

    def _tell(self, kind: Kind, event: str, manifest: Object) -> None:
        news = {"type": event, "object": copy.deepcopy(manifest)}
        self._history.append((self.version, kind, news))
        for queue in self._watches[kind]:
            queue.put_nowait(news)


def selected(item: Object, query: Any) -> bool:
    labels = item["metadata"].get("labels") or {}
    for selector in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = selector.partition("=")
        if name not in labels or (value and labels[name] != value):
            return False
    fields = query.get("fieldSelector", "")
    return not fields or item.get(fields.partition("=")[0]) == fields.partition("=")[2]


def failure(status: int, reason: str, message: str, **details: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "details": details}
    return web.json_response(body, status=status)


def not_found(kind: Kind, name: str) -> web.Response:
    return failure(404, "NotFound", f'{kind.plural} "{name}" not found', name=name, kind=kind.plural)


def child(
    name: str, job: str = "llama", job_uid: str = "job-uid", namespace: str = "research", **fields: Any
) -> Object:
    """Return an object that carries a job's labels."""
    labels = {JOB_LABEL: job, UID_LABEL: job_uid, SLICE_OFFSET_LABEL: "0"}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {}, **fields}


@pytest.fixture
async def server() -> AsyncIterator[tuple[ApiServer, str]]:
    """Run an API server; yield it and its address."""
    fake = ApiServer()
    http = TestServer(fake.app())
    await http.start_server()
    yield fake, str(http.make_url("")).rstrip("/")
    fake.end_watches()
    await http.close()


@pytest.fixture
def api_server(server: tuple[ApiServer, str]) -> ApiServer:
    return server[0]


@pytest.fixture
async def api(server: tuple[ApiServer, str]) -> AsyncIterator[Api]:
    async with Api(Configuration(host=server[1])) as api:
        yield api


@pytest.fixture
def make_child() -> Callable[..., Object]:
    return child


@pytest.fixture
def store() -> Store:
    return Store(KINDS)


@pytest.fixture
def authenticator(api: Any, store: Store) -> PodAuthenticator:
    return PodAuthenticator(api, store)


@pytest.fixture
async def start(server: Any, monkeypatch: pytest.MonkeyPatch, unused_tcp_port_factory: Any):
    """Return a function that starts an operator; all are stopped in the end, and must end well."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(settings: Settings = SETTINGS) -> Running:
            monkeypatch.setattr(assembly, "lease_identity", lambda: f"operator-{len(begun)}")
            api = await stack.enter_async_context(Api(Configuration(host=server[1])))
            names = ("rendezvous", "metrics", *(("metrics_tls",) if settings.metrics_authentication else ()))
            ports = {name: unused_tcp_port_factory() for name in names}
            running = Running(Operator(settings, api), ports)
            begun.append(asyncio.create_task(running.operator.run(running.stop, ListenPorts(**ports))))
            stack.push_async_callback(end, begun[-1], running.stop)
            return running

        begun: list[asyncio.Task[None]] = []
        yield begin
