"""A W&B server on loopback, with the part of its API that the wandb library uses for a run."""

import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.trainer.json_server import JsonHandler, serve


@dataclass
class WandBServer:
    """What the server has received. `histories` are the points of each run, by its path `ENTITY/PROJECT/ID`."""

    url: str = ""
    keys: set[str] = field(default_factory=set)
    runs: list[dict[str, Any]] = field(default_factory=list)
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        if path != "/graphql":
            self._append(path.split("/"), body.get("files", {}))
            return {}
        variables = body.get("variables", {})
        match body["operationName"]:
            case "RunResumeStatus":
                return {"data": {"model": self._describe(variables)}}
            case "UpsertBucket":
                self.runs.append(variables)
                return {"data": {"upsertBucket": {"bucket": _bucket(variables), "inserted": True}}}
            case "CreateRunFiles":
                return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}}
        return {"data": {}}

    def _append(self, path: list[str], files: dict[str, Any]) -> None:
        """Write the lines of a history at their offset, as the server of a file stream does."""
        if path[1] == "files" and (lines := files.get("wandb-history.jsonl")):
            history = self.histories.setdefault("/".join(path[2:5]), [])
            history[lines["offset"] :] = [json.loads(line) for line in lines["content"]]

    def _describe(self, variables: dict[str, Any]) -> dict[str, Any] | None:  # None: there is no such run
        path = "/".join((variables["entity"], variables["project"], variables["name"]))
        if path not in self.histories:
            return None
        history = self.histories[path]
        counts = {"historyLineCount": len(history), "eventsLineCount": 0, "logLineCount": 0}
        tails = {"historyTail": json.dumps([json.dumps(history[-1])]), "eventsTail": "[]"}
        texts = {"config": "{}", "summaryMetrics": "{}", "wandbConfig": '{"t": 1}', "tags": []}
        return {"id": "1", "name": variables["project"], "bucket": _bucket(variables) | counts | tails | texts}


def _bucket(variables: dict[str, Any]) -> dict[str, Any]:
    project = {"id": "1", "name": variables["project"], "entity": {"id": "1", "name": variables["entity"]}}
    return {"id": "1", "name": variables["name"], "displayName": "", "project": project}


@contextmanager
def serve_wandb() -> Iterator[WandBServer]:
    """Serve until the context is over."""
    server = WandBServer()

    class Handler(JsonHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # noqa: N802  # the name that the library calls
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            answer: dict[str, Any] = {}
            if authorization := self.headers.get("Authorization"):
                server.keys.add(base64.b64decode(authorization.removeprefix("Basic ")).decode().removeprefix("api:"))
                answer = server.answer(self.path, json.loads(content))
            self.send_json(answer)

    with serve(Handler) as server.url:
        yield server
