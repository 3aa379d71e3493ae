"""An MLflow server on loopback: the part of its REST API that a tracker uses, with the checks of the real server."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.trainer.json_server import JsonHandler, serve

ROOT = "/api/2.0/mlflow/"
KEY = re.compile(r"[/\w.\- :]{1,250}", re.ASCII)
_BY_TAG = re.compile(r"tags\.`([^`]+)` = '([^']*)'")


class Refusal(Exception):  # noqa: N818  # an answer, and no error of this server
    """An answer other than 200."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class MLflowServer:
    """What the server holds. `metrics` are the logged values of each run in their order: key, value, time, step."""

    url: str = ""
    accepts: str = ""
    """The header `Authorization` that requests must have. Empty: none is checked."""
    headers: set[str] = field(default_factory=set)
    experiments: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, list[tuple[str, float, int, int]]] = field(default_factory=dict)
    redirects_to: str = ""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            Refusal: the request is not valid.
        """
        match method, path:
            case "GET", "experiments/get-by-name":
                (name,) = query["experiment_name"]
                return {"experiment": {"experiment_id": self._find_experiment(name), "name": name}}
            case "POST", "experiments/create":
                self.experiments.append(body["name"])
                return {"experiment_id": str(len(self.experiments))}
            case "POST", "runs/search":
                return self._search(body)
            case "POST", "runs/create":
                return {"run": {"info": self._create(body)}}
            case "POST", "runs/log-batch":
                return self._log(body)
            case "POST", "runs/update":
                run = self._find_run(body.pop("run_id"))
                run.update(body)
                return {"run_info": {}}
        raise Refusal(404, "ENDPOINT_NOT_FOUND", f"no such endpoint: {method} {path}")

    def _find_experiment(self, name: str) -> str:
        if name not in self.experiments:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name '{name}'")
        return str(self.experiments.index(name) + 1)

    def _search(self, body: dict[str, Any]) -> dict[str, Any]:
        found = _BY_TAG.fullmatch(body["filter"])
        if not found:
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"Invalid filter: {body['filter']}")
        key, value = found.groups()
        runs = [
            run for run in self.runs if run["experiment"] in body["experiment_ids"] and run["tags"].get(key) == value
        ]
        # A real answer without runs lacks the field.
        return {"runs": [{"info": {"run_id": run["id"]}} for run in runs[: body["max_results"]]]} if runs else {}

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        if not body["experiment_id"].isdigit() or int(body["experiment_id"]) > len(self.experiments):
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", "No such experiment")
        name = f"{len(self.runs) + 1:032x}"
        tags = {one["key"]: one["value"] for one in body["tags"]}
        self.runs.append(
            {"id": name, "experiment": body["experiment_id"], "name": body["run_name"], "tags": tags,
             "status": "RUNNING", "start_time": body["start_time"]}
        )  # fmt: skip
        self.metrics[name] = []
        return {"run_id": name}

    def _log(self, body: dict[str, Any]) -> dict[str, Any]:
        run = self._find_run(body["run_id"])
        keys = [one["key"] for one in (*body["metrics"], *body["tags"])]
        if len(body["metrics"]) > 1000 or len(body["tags"]) > 100 or not all(map(KEY.fullmatch, keys)):
            raise Refusal(400, "INVALID_PARAMETER_VALUE", f"Invalid batch: {keys}")
        for one in body["metrics"]:
            if type(one["value"]) not in (int, float) or type(one["timestamp"]) is not int:
                raise Refusal(400, "INVALID_PARAMETER_VALUE", f"Invalid metric: {one}")
            point = (one["key"], one["value"], one["timestamp"], one["step"])
            if point not in self.metrics[run["id"]]:  # all four are the key of the real server's table
                self.metrics[run["id"]].append(point)
        run["tags"].update({one["key"]: one["value"] for one in body["tags"]})
        return {}

    def _find_run(self, name: str) -> dict[str, Any]:
        for run in self.runs:
            if run["id"] == name:
                return run
        raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Run '{name}' not found")


@contextmanager
def serve_mlflow(**options: Any) -> Iterator[MLflowServer]:
    """Serve until the context is over."""
    server = MLflowServer(**options)

    class Handler(JsonHandler):
        def do_GET(self) -> None:  # noqa: N802  # the name that the library calls
            self._reply({})

        def do_POST(self) -> None:  # noqa: N802  # the name that the library calls
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: dict[str, Any]) -> None:
            given = self.headers.get("Authorization", "")
            server.headers.add(given)
            address = urlsplit(self.path)
            if server.redirects_to:
                self.send_json({}, 307, {"Location": server.redirects_to + self.path})
                return
            if server.accepts not in ("", given):
                self.send_json({"error_code": "UNAUTHENTICATED", "message": "You are not authenticated."}, 401)
                return
            try:
                path = address.path.removeprefix(ROOT)
                self.send_json(server.answer(self.command, path, parse_qs(address.query), body))
            except Refusal as refusal:
                self.send_json({"error_code": refusal.code, "message": str(refusal)}, refusal.status)

    with serve(Handler) as server.url:
        yield server
