"""Replicas of the webhook: they share certificates that the operator issues, need no leader, and end without a gap."""

import asyncio
import contextlib
import copy
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from kubernetes.aio.client import Configuration

from tests.support.builders import spec_manifest
from tests.support.webhook_mount import mount_certificates
from trainingjob_api.spec.job import GROUP, KIND, VERSION
from trainingjob_operator.shell import check_pool, webhook_server
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.kinds import SECRET
from trainingjob_operator.shell.process import ListenPorts
from trainingjob_operator.shell.settings import Settings
from trainingjob_operator.shell.tls import SecretSource
from trainingjob_operator.shell.webhook import PATH
from trainingjob_operator.shell.webhook_server import WebhookServer

ROOT = Path(__file__).parents[2]
EXAMPLE = yaml.safe_load((ROOT / "crds/examples/demo.yaml").read_text())["spec"]
SETTINGS = Settings(trainer_image="trainer:1", namespace="ml")
RENEWAL = timedelta(days=45)
"""Age at which a serving certificate is due, and still valid."""
PATIENCE_SECONDS = 60.0


class Cluster:
    """The Secret of the certificates: the operator writes it, and the kubelet mounts a part of it."""

    def __init__(self, api: Api, api_server: Any, folder: Path) -> None:
        self.now = datetime.now(UTC) - RENEWAL
        self.folder = folder
        self.bundle = ""
        self._api_server = api_server
        self._source = SecretSource(api, SETTINGS, lambda: self.now)

    async def issue(self, later: timedelta = timedelta()) -> None:
        """Issue or renew the certificates as the operator does, and mount them as the kubelet does."""
        self.now += later
        self.bundle = (await self._source.read()).bundle
        mount_certificates(self._api_server.find(SECRET, "ml", SETTINGS.ca_secret), self.folder)


@pytest.fixture
async def cluster(api: Api, api_server: Any, tmp_path: Path) -> Cluster:
    (tmp_path / "certificates").mkdir()
    return Cluster(api, api_server, tmp_path / "certificates")


def review(spec: Any) -> dict[str, Any]:
    request = {
        "uid": "u",
        "kind": {"group": GROUP, "version": VERSION, "kind": KIND},
        "operation": "CREATE",
        "namespace": "research",
        "userInfo": {"username": "alice"},
        "object": {"metadata": {"name": "demo"}, "spec": spec},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def post(bundle: str, port: int, spec: Any) -> tuple[dict[str, Any], bool]:
    """Review a spec as the API server does. Return the response, and whether the connection stays open."""
    trusting = ssl.create_default_context(cadata=bundle)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
        session.post(
            f"https://127.0.0.1:{port}{PATH}", json=review(spec), server_hostname=SETTINGS.webhook_host
        ) as response,
    ):
        return (await response.json())["response"], response.headers.get("Connection") != "close"


async def probe(port: int, path: str = "/readyz") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def until(find: Any, what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await find():  # noqa: ASYNC110  # the state of a process has no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"waited in vain until {what}")


class Replica:
    """A replica that runs in the test's own process."""

    def __init__(self, server: WebhookServer, ports: ListenPorts) -> None:
        self.server, self.ports, self.stop = server, ports, asyncio.Event()
        self.task = asyncio.create_task(server.run(self.stop, ports))

    async def is_ready(self) -> bool:
        try:
            return (await probe(self.ports.metrics))[0] == 200
        except aiohttp.ClientConnectorError:
            return False


@pytest.fixture
async def start(server: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, unused_tcp_port_factory: Any):
    """Return a function that starts a replica; all end well."""
    for name in ("REVIEW_SECONDS", "REVIEW_WAIT_SECONDS"):  # no test is about how fast this machine is
        monkeypatch.setattr(check_pool, name, PATIENCE_SECONDS)
    monkeypatch.setattr(webhook_server, "DRAIN_SECONDS", 0.0)
    async with contextlib.AsyncExitStack() as stack:

        async def begin(settings: Settings = SETTINGS) -> Replica:
            api = await stack.enter_async_context(Api(Configuration(host=server[1])))
            tls_port = unused_tcp_port_factory() if settings.metrics_authentication else None
            ports = ListenPorts(unused_tcp_port_factory(), 0, unused_tcp_port_factory(), tls_port)
            replica = Replica(WebhookServer(settings, api, cluster.folder), ports)
            stack.push_async_callback(end, replica)
            return replica

        yield begin


async def end(replica: Replica) -> None:
    replica.stop.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await replica.task


async def test_it_is_ready_when_its_certificate_is_mounted_and_applies_the_rules(
    start: Any, cluster: Cluster, api_server: Any
) -> None:
    replica = await start()
    await until(lambda: can_connect(replica.ports.metrics), "it has probes")
    assert await probe(replica.ports.metrics) == (503, "there is no certificate yet\n")
    assert await probe(replica.ports.metrics, "/healthz") == (200, "ok\n")
    await cluster.issue()
    own_requests = [*api_server.requests]

    assert await replica.server.tls.refresh()
    await until(replica.is_ready, "it is ready")
    answer, stays_open = await post(cluster.bundle, replica.ports.webhook, EXAMPLE)
    assert (answer["allowed"], stays_open) == (True, True)
    bad = copy.deepcopy(EXAMPLE)
    bad["slices"]["topology"] = "3x"
    bad["model"]["headDim"] = 3
    answer, _ = await post(cluster.bundle, replica.ports.webhook, bad)
    assert answer["allowed"] is False
    assert "spec.slices.topology" in answer["status"]["message"]
    assert "spec.model.headDim" in answer["status"]["message"]
    assert api_server.requests == own_requests, "a review of a job without a ServiceAccount needs no API server"
    _, text = await probe(replica.ports.metrics, "/metrics")
    assert 'trainingjob_webhook_duration_seconds_count{allowed="false"} 1.0' in text
    assert "trainingjob_leading" not in text


async def can_connect(port: int) -> bool:
    try:
        await probe(port)
    except aiohttp.ClientConnectorError:
        return False
    return True


async def test_replicas_show_a_renewed_certificate_without_a_restart(start: Any, cluster: Cluster) -> None:
    await cluster.issue()
    replicas = [await start(), await start()]
    for replica in replicas:
        await until(replica.is_ready, "it is ready")
    before = [await shown_certificate(cluster, replica) for replica in replicas]
    assert len({*before}) == 1, "both have the certificate of the Secret"

    await cluster.issue(later=RENEWAL)
    for replica in replicas:
        assert await replica.server.tls.refresh()

    after = [await shown_certificate(cluster, replica) for replica in replicas]
    assert len({*after}) == 1
    assert after[0] != before[0]
    for replica in replicas:
        assert (await post(cluster.bundle, replica.ports.webhook, EXAMPLE))[0]["allowed"] is True


async def shown_certificate(cluster: Cluster, replica: Replica) -> bytes:
    trusting = ssl.create_default_context(cadata=cluster.bundle)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", replica.ports.webhook, ssl=trusting, server_hostname=SETTINGS.webhook_host
    )
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


async def test_a_replica_that_ends_answers_until_all_proxies_know(
    start: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_server, "DRAIN_SECONDS", PATIENCE_SECONDS)
    await cluster.issue()
    replica = await start()
    await until(replica.is_ready, "it is ready")

    replica.stop.set()
    await until(lambda: is_draining(replica), "it drains")

    answer, stays_open = await post(cluster.bundle, replica.ports.webhook, EXAMPLE)
    assert (answer["allowed"], stays_open) == (True, False), "the API server must look for another replica"
    replica.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await replica.task
    replica.task = asyncio.create_task(asyncio.sleep(0))


async def is_draining(replica: Replica) -> bool:
    return await probe(replica.ports.metrics) == (503, "the process is ending\n")


async def test_a_part_that_breaks_ends_the_replica(server: Any, cluster: Cluster) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async with Api(Configuration(host=server[1])) as api:
        replica = WebhookServer(SETTINGS, api, cluster.folder)
        replica.tls.run = broken  # type: ignore[method-assign]

        with pytest.raises(ZeroDivisionError):
            await replica.run(asyncio.Event(), ListenPorts(0, 0, 0))


async def test_the_right_to_use_a_service_account_is_checked(start: Any, cluster: Cluster, api_server: Any) -> None:
    api_server.reviews["subjectaccessreviews"] = lambda spec: {"allowed": spec["user"] == "bob"}
    await cluster.issue()
    replica = await start()
    await until(replica.is_ready, "it is ready")

    answer, _ = await post(cluster.bundle, replica.ports.webhook, EXAMPLE | {"runtime": {"serviceAccountName": "gcs"}})

    assert answer["allowed"] is False
    assert "'alice' needs the right to `use` ServiceAccount 'gcs'" in answer["status"]["message"]


async def test_a_new_job_outside_of_the_watched_namespaces_is_rejected(start: Any, cluster: Cluster) -> None:
    await cluster.issue()
    replica = await start(replace(SETTINGS, namespaces=("prod", "staging")))
    await until(replica.is_ready, "it is ready")

    answer, _ = await post(cluster.bundle, replica.ports.webhook, EXAMPLE)

    assert answer["allowed"] is False
    assert (
        "'research' must be one of the namespaces that the operator watches: prod, staging"
        in answer["status"]["message"]
    )


async def test_metrics_over_tls_need_a_token(start: Any, cluster: Cluster) -> None:
    await cluster.issue()
    replica = await start(replace(SETTINGS, metrics_authentication=True))
    await until(replica.is_ready, "it is ready")

    trusting = ssl.create_default_context(cadata=cluster.bundle)
    url = f"https://127.0.0.1:{replica.ports.metrics_tls}/metrics"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
        session.get(url, server_hostname=SETTINGS.webhook_host) as response,
    ):
        assert response.status == 401
    assert (await probe(replica.ports.metrics, "/metrics"))[0] == 404


@pytest.mark.thorough
async def test_rows_of_the_administrator_are_used_and_invalid_ones_are_named(
    start: Any, cluster: Cluster, tmp_path: Path
) -> None:
    accelerators, presets = tmp_path / "accelerators.yaml", tmp_path / "presets.yaml"
    accelerators.write_text(
        "plain: {platform: cuda, resource: example.com/gpu, topologies: {4: {}}}\nbroken: {platform: cuda}"
    )
    presets.write_text("team: {model: {preset: gpt2, numLayers: 2}, context: 1024}\nbroken: {model: {}, context: 8}")
    await cluster.issue()
    replica = await start(replace(SETTINGS, accelerators=accelerators, presets=presets))
    await until(replica.is_ready, "it is ready")

    async def answer_to(spec: Any) -> Any:
        return (await post(cluster.bundle, replica.ports.webhook, spec))[0]

    assert (await answer_to(spec_on("plain")))["allowed"] is True
    refusal = (await answer_to(spec_on("broken")))["status"]["message"]
    assert "broken must be an accelerator of the operator's hardware" in refusal
    assert (await answer_to(spec_manifest(model={"preset": "team"})))["allowed"] is True
    refusal = (await answer_to(spec_manifest(model={"preset": "broken"})))["status"]["message"]
    assert "broken is not a preset" in refusal
    _, text = await probe(replica.ports.metrics, "/metrics")
    assert 'trainingjob_refused_accelerators{name="broken"} 1.0' in text
    assert 'trainingjob_refused_presets{name="broken"} 1.0' in text


def spec_on(accelerator: str) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(EXAMPLE)
    spec["slices"] |= {"accelerator": accelerator, "topology": "4"}
    return spec


@contextlib.contextmanager
def kubeconfig(folder: Path, url: str) -> Iterator[Path]:
    path = folder / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        f" clusters: [{{name: k, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    )
    yield path


@contextlib.asynccontextmanager
async def process(cluster: Cluster, config: Path, ports: tuple[int, int]) -> AsyncIterator[asyncio.subprocess.Process]:
    variables = {
        "TRAININGJOB_TRAINER_IMAGE": "t",
        "TRAININGJOB_NAMESPACE": SETTINGS.namespace,
        "TRAININGJOB_CERTIFICATES": str(cluster.folder),
        "TRAININGJOB_WEBHOOK_PORT": str(ports[0]),
        "TRAININGJOB_METRICS_PORT": str(ports[1]),
        "KUBECONFIG": str(config),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRAININGJOB_", "KUBE"))}
    program = ("-c", "from trainingjob_operator.launch import main; main()", "webhook")
    running = await asyncio.create_subprocess_exec(
        sys.executable, *program, env=inherited | variables, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.wait()


@pytest.mark.slow  # two processes with a worker each, and the whole time of draining
async def test_of_two_processes_one_is_replaced_and_no_review_fails(
    server: Any, cluster: Cluster, tmp_path: Path, unused_tcp_port_factory: Any
) -> None:
    await cluster.issue()
    ports = [(unused_tcp_port_factory(), unused_tcp_port_factory()) for _ in range(2)]

    async def is_ready(number: int) -> bool:
        return await can_connect(ports[number][1]) and (await probe(ports[number][1]))[0] == 200

    with kubeconfig(tmp_path, server[1]) as config:
        async with process(cluster, config, ports[0]) as first, process(cluster, config, ports[1]):
            for number in range(2):
                await until(lambda number=number: is_ready(number), "it is ready")
            first.send_signal(signal.SIGTERM)
            await until(lambda: is_not_ready(ports[0][1]), "it is taken out of the Service")
            for port, _ in ports:
                assert (await post(cluster.bundle, port, EXAMPLE))[0]["allowed"] is True
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await first.wait() == 0
            assert (await post(cluster.bundle, ports[1][0], EXAMPLE))[0]["allowed"] is True


async def is_not_ready(port: int) -> bool:
    return (await probe(port))[0] == 503
