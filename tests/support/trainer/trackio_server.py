"""A Trackio server on loopback: the part of its HTTP API that a tracker uses, with the checks of the real server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.trainer.json_server import JsonHandler, serve


@dataclass
class TrackioServer:
    """What the server holds: the entries of each run in their order, by project and id of the run."""

    url: str = ""
    token: str = ""
    api_version: int = 1
    headers: list[dict[str, str]] = field(default_factory=list)
    runs: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)

    def log(self, entries: list[dict[str, Any]]) -> None:
        """Store entries. It ignores an entry whose id its project has."""
        for entry in entries:
            known = {
                one["log_id"] for (project, _), run in self.runs.items() if project == entry["project"] for one in run
            }
            if entry["log_id"] not in known:
                self.runs.setdefault((entry["project"], entry["run_id"]), []).append(entry)


@contextmanager
def serve_trackio(**options: Any) -> Iterator[TrackioServer]:
    """Serve until the context is over."""
    server = TrackioServer(**options)

    class Handler(JsonHandler):
        def do_GET(self) -> None:  # noqa: N802  # the name that the library calls
            self.send_json({"version": "0.43.0", "api_version": server.api_version, "writes_paused": False})

        def do_POST(self) -> None:  # noqa: N802  # the name that the library calls
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path != "/api/bulk_log":
                self.send_json({"error": f"Unknown API: {self.path}"}, 404)
            elif self.headers.get("X-Trackio-Write-Token") != server.token:
                self.send_json({"error": "A write_token is required to log metrics or upload to this server."}, 400)
            else:
                server.log(body["kwargs"]["logs"])
                self.send_json({"data": None})

    with serve(Handler) as server.url:
        yield server
