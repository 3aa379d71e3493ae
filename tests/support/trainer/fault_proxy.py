"""A proxy on loopback between a client and an object store, which injects the faults of real stores and networks."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

BUSY = ("429", "503")
FAULTS = (*BUSY, "reset", "lost", "cut", "slow", "busy page", "expired")
"""Statuses of a busy store; a connection that breaks before the request, after it (the store has carried it out), or in
the middle of the answer; an answer in small pieces; the web page of a proxy whose store is away; a refused token."""
EXPIRED = {
    "s3": (400, "application/xml", b"<Error><Code>ExpiredToken</Code></Error>"),
    "gs": (401, "application/json", b'{"error": {"code": 401, "message": "Invalid Credentials"}}'),
}
DENIED = {
    "s3": (403, "application/xml", b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"),
    "gs": (403, "application/json", b'{"error": {"code": 403, "message": "does not have storage.objects access"}}'),
}
"""The answer `denied` of a store that grants no rights. No repetition helps, so it is none of `FAULTS`."""
PAGES = {"html": 200, "html 403": 403, "html 404": 404, "busy page": 502}
"""Statuses of web pages instead of answers. No repetition helps with those below 500."""
SLOW_SECONDS = 0.05


class FaultProxy:
    """A running proxy. `choose` returns the fault of a request by its method and path; empty: none."""

    def __init__(self, scheme: str, upstream: str, url: str) -> None:
        self.scheme = scheme
        self.upstream = urlsplit(upstream).netloc
        self.url = url
        self.choose: Callable[[str, str], str] = lambda _method, _path: ""
        self.injected: list[str] = []
        self._lock = threading.Lock()

    def next_fault(self, method: str, path: str) -> str:
        """Return the fault of the next request, and record it."""
        with self._lock:
            fault = self.choose(method, path)
            if fault:
                self.injected.append(fault)
            return fault

    def inject(self, *faults: str) -> None:
        """Inject faults into the next requests, one each."""
        left = list(faults)
        self.choose = lambda _method, _path: left.pop(0) if left else ""

    def inject_randomly(self, seed: int, share: float = 0.3) -> None:
        """Inject a random fault into a share of the requests, in an order that the seed decides."""
        rng = random.Random(seed)  # noqa: S311  # the same faults in each run
        self.choose = lambda _method, _path: rng.choice(FAULTS) if rng.random() < share else ""

    def stop(self) -> None:
        """Inject no more faults."""
        self.choose = lambda _method, _path: ""


@contextmanager
def serve_faults(scheme: str, upstream: str) -> Iterator[FaultProxy]:
    """Forward requests to a server until the context is over."""

    class Handler(_Handler):
        proxy: FaultProxy

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        listener.block_on_close = False
        Handler.proxy = FaultProxy(scheme, upstream, f"http://127.0.0.1:{listener.server_port}")
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Handler.proxy
        finally:
            listener.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.proxy.next_fault(self.command, self.path):
            case "":
                self._answer(*self._forward(body))
            case "429" | "503" as status:
                self._refuse(int(status), "text/plain", b"slow down")
            case page if page in PAGES:
                self._refuse(
                    PAGES[page], "text/html; charset=utf-8", b"<html><body>Log in to the network</body></html>"
                )
            case "expired":
                self._refuse(*EXPIRED[self.proxy.scheme])
            case "denied":
                self._refuse(*DENIED[self.proxy.scheme])
            case "reset":
                self._break()
            case "lost":
                self._forward(body)
                self._break()
            case "cut":
                self._answer(*self._forward(body), cut=True)
            case "slow":
                self._answer(*self._forward(body), pause=SLOW_SECONDS)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  # the names of the library

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        server = HTTPConnection(self.proxy.upstream)
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            server.putheader(name, value)
        server.endheaders(body)
        answer = server.getresponse()
        content = answer.read()
        server.close()
        return answer.status, answer.getheaders(), content

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False, pause: float = 0.0
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        if self.command == "HEAD":
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        time.sleep(pause)
        if cut:
            self._break()
        else:
            self.wfile.write(body[half:])

    def _refuse(self, status: int, kind: str, body: bytes) -> None:
        self._answer(status, [("Content-Type", kind)], body)

    def _break(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        with suppress(OSError):  # the client has given up
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the library
        pass
