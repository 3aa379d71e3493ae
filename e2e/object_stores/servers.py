"""Object stores on loopback: fake-gcs-server for the API of Google Cloud Storage, and versitygw for that of S3.

Both are built once per machine from the Go modules in `tools/`. `python -m e2e.object_stores.servers` builds them.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import requests

from e2e.cluster.go_tools import GoTools
from e2e.cluster.run_program import ClusterError, free_port

SERVERS = GoTools(
    Path(__file__).parent / "tools",
    {
        "fake-gcs-server": "github.com/fsouza/fake-gcs-server",
        "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    },
    "object-stores",
    "5 minutes",
)
BUCKET = "runs"
ACCESS_KEY, SECRET_KEY = "loopback-access", "loopback-secret"
START_SECONDS = 60.0
LOOPBACK = "127.0.0.1"


class ObjectServer(NamedTuple):
    """A running server, and the environment in which a program uses it."""

    scheme: str
    """`gs` or `s3`."""
    url: str

    def environment(self, url: str = "") -> dict[str, str]:
        """Return the variables of a program that uses the server; `url` is that of a proxy, empty: none."""
        if self.scheme == "gs":
            return {"STORAGE_EMULATOR_HOST": url or self.url, "TENSORSTORE_GCS_HTTP_URL": url or self.url}
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        return {"AWS_ENDPOINT_URL": url or self.url, "AWS_REGION": "us-east-1", **keys}


@contextmanager
def serve_gcs(folder: Path, address: str = LOOPBACK) -> Iterator[ObjectServer]:
    """Serve a bucket of Google Cloud Storage from memory, at an address of this host, until the context is over.

    Raises:
        ClusterError: the server cannot be built or does not start.
    """
    SERVERS.ensure(["fake-gcs-server"])
    port = free_port(address)
    url = f"http://{address}:{port}"
    command = ["-backend=memory", "-scheme=http", f"-host={address}", f"-port={port}", "-log-level=error"]
    with _run("fake-gcs-server", [*command, f"-external-url={url}"], folder, {}) as process:
        _wait_for(f"{url}/storage/v1/b", process, folder)
        requests.post(f"{url}/storage/v1/b", json={"name": BUCKET}, timeout=START_SECONDS).raise_for_status()
        yield ObjectServer("gs", url)


@contextmanager
def serve_s3(folder: Path, address: str = LOOPBACK) -> Iterator[ObjectServer]:
    """Serve a bucket of S3 from a folder, at an address of this host, until the context is over.

    Raises:
        ClusterError: the server cannot be built or does not start.
    """
    SERVERS.ensure(["versitygw"])
    (folder / "data" / BUCKET).mkdir(parents=True)
    (folder / "versions").mkdir()
    port = free_port(address)
    url = f"http://{address}:{port}"
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [f"--port={address}:{port}", "--health=/health", "--quiet", "posix", str(folder / "data")]
    with _run("versitygw", command, folder, keys) as process:
        _wait_for(f"{url}/health", process, folder)
        yield ObjectServer("s3", url)


SERVE = {"gs": serve_gcs, "s3": serve_s3}
"""The server of each scheme."""


@contextmanager
def _run(
    name: str, command: list[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [SERVERS.binaries / name, *command], env={**os.environ, **environment}, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if requests.get(url, timeout=START_SECONDS).ok:
                return
        except requests.ConnectionError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"the server of {url} does not start: {(folder / 'log').read_text()}") from error
        time.sleep(0.02)


if __name__ == "__main__":
    SERVERS.ensure(SERVERS.programs)
