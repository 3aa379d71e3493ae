"""HTTP servers on loopback that answer with JSON."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """Handler of requests, which logs nothing."""

    def send_json(
        self, answer: dict[str, Any], status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Send an answer."""
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the library
        pass


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve until the context is over, and provide the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        thread = Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}"
        finally:
            listener.shutdown()
            thread.join()
