"""A hub on loopback, with the part of its API that downloads use: revisions, trees, and files with ranges."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import huggingface_hub
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """One repository, and what was requested. `broken_after` bytes, the connection of a file's request breaks once."""

    repository: str
    files: dict[str, bytes]
    token: str = ""
    """The token of an account with access. Empty: the repository is public."""
    kind: str = "models"
    """`models`, or `datasets`."""
    url: str = ""
    status: int = 200
    broken_after: int | None = None
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of each request."""

    @property
    def ranges(self) -> list[str]:
        """Return the ranges that were requested."""
        return [span for _, _, span in self.requests if span]


class HubHandler(BaseHTTPRequestHandler):
    """Answers the requests to a hub."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._serve(has_body=False)

    def do_GET(self) -> None:
        self._serve(has_body=True)

    def _serve(self, *, has_body: bool) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        api, folder = f"/api/{hub.kind}/{hub.repository}", "" if hub.kind == "models" else f"/{hub.kind}"
        resolve = f"{folder}/{hub.repository}/resolve/{COMMIT}/"
        if hub.status != 200:
            self._answer(hub.status, b"{}")
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path in (f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self._answer(200, json.dumps({"id": hub.repository, "sha": COMMIT, "siblings": []}).encode())
        elif path == f"{api}/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hash_of(content)}
                for name, content in hub.files.items()
            ]
            self._answer(200, json.dumps(tree).encode())
        elif unquote(path.removeprefix(resolve)) in hub.files:
            self._serve_file(hub.files[unquote(path.removeprefix(resolve))], has_body=has_body)
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _serve_file(self, content: bytes, *, has_body: bool) -> None:
        hub = self.hub
        headers = {"ETag": f'"{hash_of(content)}"', "X-Repo-Commit": COMMIT}
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if "Range" in self.headers else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        breaks = has_body and hub.broken_after is not None and len(content) > hub.broken_after
        sent = content[start : hub.broken_after] if breaks else content[start:]
        self._answer(206 if start else 200, sent if has_body else b"", headers, len(content) - start)
        if breaks:
            hub.broken_after = None
            self.close_connection = True

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def hash_of(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


class Clock:
    """The module `time` for one other module, with another `sleep`."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@contextmanager
def use_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Serve a hub until the end of the block, and let the client use it."""
    with serve_hub(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.utils._http.time", Clock(lambda seconds: None))  # between its retries
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve a hub until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": hub}))
    Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
