"""Simultaneous attacks on the operator for one minute on loopback: effects on event loop, Lease and memory.

The operator and its webhook run in one process, which is harder than their two Deployments. Their in-memory API server
answers a TokenReview after 50 ms. Another process sends 200 expensive reviews, opens 5,000 idle connections, and sends
reports with 2,000 invalid tokens for the right audience. 500 ConfigMaps of 1 MB carry the labels of a job. Meanwhile a
regular client at another address requests a review of the demo every second.
"""

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from kubernetes.aio.client import Configuration
from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from e2e.benchmarks.process_usage import memory_bytes, raise_file_limit
from e2e.benchmarks.webhook import review
from tests.shell.conftest import ApiServer, child
from tests.support.tokens import make_token
from tests.support.webhook_mount import mount_certificates
from trainingjob_api.protocol import REPORT_PATH
from trainingjob_operator.core.names import JOB_LABEL, UID_LABEL
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.assembly import Operator
from trainingjob_operator.shell.kinds import CONFIG_MAP, SECRET, TRAINING_JOB
from trainingjob_operator.shell.process import ListenPorts
from trainingjob_operator.shell.settings import Settings
from trainingjob_operator.shell.webhook import PATH
from trainingjob_operator.shell.webhook_server import WebhookServer

ROOT = Path(__file__).parents[2]
NUM_REVIEWS, NUM_IDLE, NUM_TOKENS, NUM_CONFIG_MAPS = 200, 5000, 2000, 500
SECONDS = 60.0
PORTS = ListenPorts(webhook=29443, rendezvous=28443, metrics=28180)
WEBHOOK_METRICS_PORT = 28181
API_PORT = 28001
REVIEW_SECONDS = 0.05
HEARTBEAT_SECONDS = 0.02
HEARTBEAT_GOAL_S = 1.0
ANSWER_GOAL_S = 5.0  # the chart's default timeout of the webhook
ATTACKER, CLIENT = "127.0.0.1", "127.0.0.2"
SERVE, ATTACK = "serve", "attack"
SETTINGS = Settings(trainer_image="trainer:1", namespace="ml", service="trainingjob-operator")
HOSTS = {PORTS.webhook: SETTINGS.webhook_host, PORTS.rendezvous: SETTINGS.host}


def runqueue_seconds() -> float:
    """Return the time that this thread was runnable but not running; on a busy machine it dominates."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # the kernel has no such counter
        return 0.0


def demo() -> dict[str, Any]:
    """Return the demo's spec."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "crds/examples/demo.yaml").read_text())["spec"]
    return spec


def make_expensive_spec(number: int) -> dict[str, Any]:
    """Return one of many specs whose mesh is expensive to choose."""
    spec = demo()
    sizes = {"embedDim": 16384, "numLayers": 60, "numHeads": 128, "numKvHeads": 64, "headDim": 128}
    training = {"globalBatchSize": 1048576 - 4096 * number, "sequenceLength": 131072}
    return spec | {
        "slices": {"accelerator": "tpu-v5p", "topology": "16x16x24", "min": 1, "max": 2},
        "model": spec["model"] | sizes,
        "training": spec["training"] | training,
        "parallelism": {"strategy": "auto"},
    }


async def serve() -> None:
    """Run the operator until standard input ends; then print the measured effects."""
    raise_file_limit()
    stop, slowest, own, busiest, lost = asyncio.Event(), 0.0, 0.0, 0.0, 0
    folder = Path(tempfile.mkdtemp())
    async with Api(Configuration(host=f"http://127.0.0.1:{API_PORT}")) as api:
        operator = Operator(SETTINGS, api)
        running = asyncio.create_task(operator.run(stop, PORTS))
        while not operator.lease.is_leading:  # noqa: ASYNC110  # no single event covers all parts
            await asyncio.sleep(0.05)
        mount_certificates(await api.get(SECRET, SETTINGS.namespace, SETTINGS.ca_secret) or {}, folder)
        webhook = WebhookServer(SETTINGS, api, folder)
        reviewing = asyncio.create_task(webhook.run(stop, replace(PORTS, metrics=WEBHOOK_METRICS_PORT)))
        await webhook.tls.ready.wait()
        print(json.dumps({"ca": operator.tls.bundle}), flush=True)
        loop, was_leading = asyncio.get_running_loop(), True
        ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        before, cpu, waited = loop.time(), time.thread_time(), runqueue_seconds()
        while not ending.done():
            await asyncio.sleep(HEARTBEAT_SECONDS)
            now, is_leading = loop.time(), operator.lease.is_leading
            pause, before = now - before - HEARTBEAT_SECONDS, now
            runqueue_delay, waited = runqueue_seconds() - waited, runqueue_seconds()
            slowest, own = max(slowest, pause), max(own, pause - runqueue_delay)
            busiest, cpu = max(busiest, time.thread_time() - cpu), time.thread_time()
            lost += was_leading and not is_leading
            was_leading = is_leading
        stop.set()
        await asyncio.gather(running, reviewing)
    shutil.rmtree(folder)
    print(json.dumps({"heartbeat": slowest, "own": own, "busiest": busiest, "lost": lost}), flush=True)


def session(ca: str, address: str) -> aiohttp.ClientSession:
    """Return a client that trusts the operator and connects from an address of the loopback network."""
    trust = ssl.create_default_context(cadata=ca)
    connector = aiohttp.TCPConnector(ssl=trust, local_addr=(address, 0), limit=200)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30))


async def attack(ca: str) -> None:
    """Run all attacks at once."""
    raise_file_limit()

    async def post(client: aiohttp.ClientSession, port: int, path: str, body: Any, token: str = "") -> None:
        url, headers = f"https://127.0.0.1:{port}{path}", {"Authorization": f"Bearer {token}"}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with client.post(url, json=body, headers=headers, server_hostname=HOSTS[port]) as response:
                await response.read()

    async def idle(port: int, kept: list[asyncio.StreamWriter]) -> None:
        with contextlib.suppress(OSError):
            kept.append((await asyncio.open_connection("127.0.0.1", port))[1])

    kept: list[asyncio.StreamWriter] = []
    async with session(ca, ATTACKER) as client:
        reviews = (review(make_expensive_spec(number), f"costly-{number}") for number in range(NUM_REVIEWS))
        tokens = (make_token(f"bad-{number}") for number in range(NUM_TOKENS))
        await asyncio.gather(
            *(post(client, PORTS.webhook, PATH, body) for body in reviews),
            *(idle((PORTS.webhook, PORTS.rendezvous)[number % 2], kept) for number in range(NUM_IDLE)),
            *(post(client, PORTS.rendezvous, REPORT_PATH, {}, token) for token in tokens),
        )
        await asyncio.to_thread(sys.stdin.read)


def chart_limit_bytes() -> int:
    """Return the memory limit that the chart sets."""
    values = yaml.safe_load((ROOT / "charts/trainingjob/values.yaml").read_text())
    number, unit = values["resources"]["limits"]["memory"][:-2], values["resources"]["limits"]["memory"][-2:]
    return int(number) * {"Mi": 2**20, "Gi": 2**30}[unit]


@contextlib.asynccontextmanager
async def api_server() -> Any:
    """Run an API server that answers reviews slowly."""
    fake = ApiServer()
    fake.reviews["tokenreviews"] = lambda spec: {"authenticated": False}

    @web.middleware
    async def delay_reviews(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.endswith("reviews"):
            await asyncio.sleep(REVIEW_SECONDS)
        answer: web.StreamResponse = await handler(request)
        return answer

    app = fake.app()
    app.middlewares.append(delay_reviews)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", API_PORT).start()
    try:
        yield fake
    finally:
        fake.end_watches()
        await runner.cleanup()


def label_config_maps(fake: ApiServer, uid: str) -> Iterator[None]:
    """Create large ConfigMaps one by one, labelled alternately with an existing and a missing job."""
    for number in range(NUM_CONFIG_MAPS):
        made = child(f"large-{number}", data={"x": "y" * 1_000_000})
        labels = {UID_LABEL: uid if number % 2 else "nobody", JOB_LABEL: "demo"}
        fake.put(CONFIG_MAP, {**made, "metadata": made["metadata"] | {"labels": labels}})
        yield


async def measure() -> list[Figure]:
    """Start all processes, wait for a minute, return the figures."""
    async with api_server() as fake:
        metadata = {"name": "demo", "namespace": "research", "generation": 1}
        uid = fake.put(TRAINING_JOB, {"metadata": metadata, "spec": demo()})["metadata"]["uid"]
        pipe, module = asyncio.subprocess.PIPE, (sys.executable, "-m", "e2e.benchmarks.attacks")
        operator = await asyncio.create_subprocess_exec(*module, SERVE, stdin=pipe, stdout=pipe)
        assert operator.stdin
        assert operator.stdout
        attacker = None
        try:
            ca = json.loads(await operator.stdout.readline())["ca"]
            attacker = await asyncio.create_subprocess_exec(*module, ATTACK, stdin=pipe, env={**os.environ, "CA": ca})
            most, waits, refused = await _watch(fake, uid, operator.pid, ca)
        finally:
            for process in filter(None, (attacker, operator)):
                assert process.stdin
                process.stdin.close()
        noticed = json.loads(await operator.stdout.readline())
        await operator.wait()
        await attacker.wait()
    return [
        Figure("event loop, longest pause", noticed["heartbeat"], "s", HEARTBEAT_GOAL_S),
        Figure("event loop, longest pause without waiting for a CPU", noticed["own"], "s", HEARTBEAT_GOAL_S),
        Figure("event loop, most CPU between two heartbeats", noticed["busiest"], "s", HEARTBEAT_GOAL_S),
        Figure("Lease lost", noticed["lost"], "times", 1),
        Figure("memory, peak", most / 2**20, "MiB", chart_limit_bytes() / 2**20),
        Figure("somebody else's review, slowest", max(waits), "s", ANSWER_GOAL_S),
        Figure("somebody else's reviews refused for now", refused, "reviews", len(waits)),
    ]


async def _watch(fake: ApiServer, uid: str, pid: int, ca: str) -> tuple[int, list[float], int]:
    """Return the peak memory, the latencies of the regular client, and the number of its refused reviews."""
    loop = asyncio.get_running_loop()
    start, most, refused = loop.time(), 0, 0
    waits: list[float] = []
    large = label_config_maps(fake, uid)

    async def ask(number: int) -> None:
        nonlocal refused
        since = loop.time()
        url, body = f"https://127.0.0.1:{PORTS.webhook}{PATH}", review(demo(), f"demo-{number}")
        try:
            async with client.post(url, json=body, server_hostname=SETTINGS.webhook_host) as response:
                answer = (await response.json())["response"]
                if not answer["allowed"]:
                    refused += 1
                    print(answer["status"]["message"], file=sys.stderr)
        except (aiohttp.ClientError, TimeoutError, OSError):
            refused += 1
        waits.append(loop.time() - since)

    async with session(ca, CLIENT) as client, asyncio.TaskGroup() as group:
        for turn in range(int(SECONDS * 10)):
            next(large, None)
            if turn % 10 == 0:
                group.create_task(ask(turn))
            most = max(most, memory_bytes(pid))
            await asyncio.sleep(max(start + turn / 10 - loop.time(), 0.0))
    return most, waits, refused


def main(arguments: list[str]) -> int:
    """Serve, attack, or measure and print the table; return the exit code, 1 if a goal is missed."""
    if arguments == [SERVE]:
        asyncio.run(serve())
        return 0
    if arguments == [ATTACK]:
        asyncio.run(attack(os.environ["CA"]))
        return 0
    figures = asyncio.run(measure())
    publish("attacks", figures, Console())
    return int(any(figure.ratio >= 1 for figure in figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
