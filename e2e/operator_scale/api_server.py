"""An API server with etcd on loopback, and nothing else: no controllers, no nodes.

Its store is in a temporary folder. All clients are administrators with one token: the benchmark measures controllers,
and no permissions.
"""

import asyncio
import contextlib
import json
import secrets
import signal
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from e2e.cluster.binaries import binaries_dir, ensure_binaries
from e2e.cluster.run_program import ClusterError
from trainingjob_operator.cli.child_process import KILL_WITH_PARENT

SECURE_PORT, ETCD_PORT, ETCD_PEER_PORT = 26443, 22379, 22380
ISSUER = "https://kubernetes.default.svc"
START_SECONDS = 90.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.2
NUM_CONNECTIONS = 64

type Manifest = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A running API server: its folder of logs, a kubeconfig, and a client."""

    folder: Path
    kubeconfig: Path
    url: str
    client: aiohttp.ClientSession

    async def request(self, method: str, path: str, body: Manifest | None = None, **headers: str) -> Manifest:
        """Send a JSON request. Raises `ClusterError` with the answer if it fails."""
        content = {"Content-Type": "application/json"} | headers
        async with self.client.request(method, self.url + path, json=body, headers=content) as response:
            text = await response.text()
        if response.status >= 400:
            raise ClusterError(f"{method} {path}: {response.status} {text[:1000]}")
        answer: Manifest = json.loads(text)
        return answer

    async def apply(self, path: str, manifest: Manifest) -> Manifest:
        """Apply a manifest on the server side. `path` is that of its collection."""
        url = f"{path}/{manifest['metadata']['name']}?fieldManager=benchmark&force=true"
        return await self.request("PATCH", url, manifest, **{"Content-Type": "application/apply-patch+yaml"})

    async def define(self, file: Path) -> None:
        """Install a CustomResourceDefinition, and return when it is served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        manifest = yaml.load(await asyncio.to_thread(file.read_text), yaml.CSafeLoader)
        await self.apply(path, manifest)
        name = manifest["metadata"]["name"]

        async def is_served() -> bool:
            conditions = (await self.request("GET", f"{path}/{name}")).get("status", {}).get("conditions") or []
            return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

        await until(is_served, f"the API server to serve {name}", START_SECONDS)

    async def count_writes(self) -> dict[str, float]:
        """Return the number of write requests so far, by resource; those of Leases are left out."""
        async with self.client.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        counts: dict[str, float] = {}
        for line in lines:
            if not line.startswith("apiserver_request_total{"):
                continue
            labels, _, value = line.rpartition("} ")
            pairs = dict(pair.split("=", 1) for pair in labels.partition("{")[2].split(",") if "=" in pair)
            verb, resource = pairs["verb"].strip('"'), pairs["resource"].strip('"')
            if verb in ("POST", "PUT", "PATCH", "APPLY", "DELETE") and resource not in ("leases", "tokenreviews"):
                name = "/".join(filter(None, (resource, pairs.get("subresource", "").strip('"'))))
                counts[name] = counts.get(name, 0.0) + float(value)
        return counts


@contextlib.asynccontextmanager
async def running_api_server() -> AsyncIterator[Server]:
    """Run etcd and an API server.

    Raises:
        ClusterError: a build failed, or a server does not start; the message names its log.
    """
    await asyncio.to_thread(ensure_binaries, ["etcd", "kube-apiserver"])
    with tempfile.TemporaryDirectory(prefix="operator-scale-") as name:
        folder, token = Path(name), secrets.token_hex(16)
        _write_credentials(folder, token)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(running("etcd", _etcd_command(folder), folder))
            server = await stack.enter_async_context(running("kube-apiserver", _api_server_command(folder), folder))
            certificate = folder / "certificates" / "apiserver.crt"
            await until(certificate.exists, "the API server's certificate", START_SECONDS, server)
            trust = ssl.create_default_context(cafile=certificate)
            connector = aiohttp.TCPConnector(ssl=trust, limit=NUM_CONNECTIONS)
            client = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector,
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
                )
            )
            url = f"https://127.0.0.1:{SECURE_PORT}"

            async def is_ready() -> bool:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"{url}/readyz") as response:
                        return response.status == 200
                return False

            await until(is_ready, f"the API server; see {folder}", START_SECONDS, server)
            yield Server(folder, _write_kubeconfig(folder, url, certificate, token), url, client)


@contextlib.asynccontextmanager
async def running(
    name: str, command: Sequence[str | Path], folder: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program with its output in `folder`/`name`.log, and stop it at the end.

    It also ends if this process is killed. The next run would otherwise measure the programs of this one.
    """
    with (folder / f"{name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=folder,
            preexec_fn=KILL_WITH_PARENT,
        )
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a program by SIGTERM, or by SIGKILL if it does not react."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def until(condition: Any, what: str, seconds: float, process: asyncio.subprocess.Process | None = None) -> None:
    """Return when a condition, a function or a coroutine function, holds.

    Raises:
        ClusterError: the time ran out, or the process ended.
    """
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = condition()
                if await answer if asyncio.iscoroutine(answer) else answer:
                    return
                if process and process.returncode is not None:
                    raise ClusterError(f"a process ended with {process.returncode} instead of {what}")
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise ClusterError(f"waited {seconds:.0f} s in vain for {what}") from None


def _etcd_command(folder: Path) -> list[str | Path]:
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return [
        binaries_dir() / "etcd",
        f"--data-dir={folder / 'etcd'}",
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
        *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
        *("--unsafe-no-fsync", "--log-level=warn", "--quota-backend-bytes=4294967296"),
    ]


def _api_server_command(folder: Path) -> list[str | Path]:
    return [
        binaries_dir() / "kube-apiserver",
        *(f"--secure-port={SECURE_PORT}", "--bind-address=127.0.0.1", f"--cert-dir={folder / 'certificates'}"),
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=AlwaysAllow",
        # The objects of the benchmark have no service accounts of a controller manager, and no nodes.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        # The limits protect other clients of a cluster, of which there are none.
        *(
            "--max-requests-inflight=4000",
            "--max-mutating-requests-inflight=2000",
            "--enable-priority-and-fairness=false",
        ),
    ]


def _write_credentials(folder: Path, token: str) -> None:
    (folder / "tokens.csv").write_text(f'{token},benchmark,benchmark,"system:masters"\n')
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )  # fmt: skip


def _write_kubeconfig(folder: Path, url: str, certificate: Path, token: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "scale", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "scale", "user": {"token": token}}],
        "contexts": [{"name": "scale", "context": {"cluster": "scale", "user": "scale"}}],
        "current-context": "scale",
    }
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
