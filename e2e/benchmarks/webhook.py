"""The webhook under load: latency of creates of the largest example with twenty concurrent clients.

The server is the operator's own, in its own process, with TLS and the real rules. Every create has another name and
seed, like jobs of many people, so that no answer is cached. Each client has one connection, as the API server has, and
sends its next create after the previous answer.
"""

import asyncio
import json
import os
import ssl
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientSession, TCPConnector
from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from trainingjob_api.spec.job import API_VERSION, GROUP, KIND, VERSION, TrainingJobSpec
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.admission_review import MAX_BYTES
from trainingjob_operator.shell.certificates import renew
from trainingjob_operator.shell.check_pool import CheckPool
from trainingjob_operator.shell.process import serving
from trainingjob_operator.shell.tls import load_serving_certificate
from trainingjob_operator.shell.webhook import PATH, webhook_app

EXAMPLES = Path(__file__).parents[2] / "crds/examples"
NUM_CLIENTS = 20
CREATES_PER_CLIENT = 50
GOAL_MS = 100.0
REJECTION_GOAL_S = 1.0
SERVE = "serve"

type Review = dict[str, Any]


async def serve() -> None:
    """Run the webhook until standard input ends; first print its port and CA."""
    certificates = renew(None, ("localhost",), datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_serving_certificate(context, certificates.serving)
    async with (
        CheckPool(BUILTIN) as checks,
        serving(webhook_app(Admission(checks.evaluate_review, _may_use)), 0, context) as runner,
    ):
        port = next(address[1] for address in runner.addresses if len(address) == 2)  # IPv4: one port per family
        print(json.dumps({"port": port, "ca": certificates.bundle}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def measure() -> list[Figure]:
    """Start the webhook, send all requests, return the figures."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "e2e.benchmarks.webhook", SERVE)
    server = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert server.stdin
    assert server.stdout
    try:
        about = json.loads(await server.stdout.readline())
        trust = ssl.create_default_context(cadata=about["ca"])
        url = f"https://localhost:{about['port']}{PATH}"
        async with ClientSession(connector=TCPConnector(limit=NUM_CLIENTS, ssl=trust)) as session:
            return await _measure(session, url, server.pid)
    finally:
        server.stdin.close()
        await server.wait()


async def _measure(session: ClientSession, url: str, server: int) -> list[Figure]:
    job = largest_example()
    await asyncio.gather(*(_create(session, url, job, f"warm-{client}") for client in range(NUM_CLIENTS)))

    async def client(number: int) -> list[float]:
        return [await _create(session, url, job, f"job-{number}-{turn}") for turn in range(CREATES_PER_CLIENT)]

    start = cpu_seconds(server)
    waits = [wait for waits in await asyncio.gather(*map(client, range(NUM_CLIENTS))) for wait in waits]
    cpu = (cpu_seconds(server) - start) / len(waits)
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    flood = review(job["spec"] | {"extra": [0] * (MAX_BYTES // 4)}, "flood")
    return [
        Figure("create, p50", cuts[49] * 1000, "ms", GOAL_MS),
        Figure("create, p99", cuts[98] * 1000, "ms", GOAL_MS),
        Figure("create, slowest", max(waits) * 1000, "ms", GOAL_MS),
        Figure("create, server's CPU", cpu * 1000, "ms", GOAL_MS / NUM_CLIENTS),
        Figure(
            "the costliest body, refused", await _post(session, url, flood, is_allowed=False), "s", REJECTION_GOAL_S
        ),
    ]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, which unlike latency does not depend on the machine's load."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def largest_example() -> Review:
    """Return the example with the longest spec, with its defaults filled in as by the API server."""
    jobs = [yaml.safe_load(path.read_text()) for path in sorted(EXAMPLES.glob("*.yaml"))]
    job: Review = max(jobs, key=lambda job: len(json.dumps(job["spec"])))
    spec = TrainingJobSpec.model_validate(job["spec"])
    return job | {"spec": spec.model_dump(by_alias=True, exclude_none=True, mode="json")}


def review(spec: Review, name: str) -> Review:
    """Return the admission review that the API server posts for a create."""
    request = {
        "uid": f"00000000-0000-0000-0000-{name}",
        "kind": {"group": GROUP, "version": VERSION, "kind": KIND},
        "operation": "CREATE",
        "name": name,
        "namespace": "bench",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def _create(session: ClientSession, url: str, job: Review, name: str) -> float:
    spec = job["spec"] | {"training": job["spec"]["training"] | {"seed": hash(name) % 2**31}}
    return await _post(session, url, review(spec, name), is_allowed=True)


async def _post(session: ClientSession, url: str, body: Review, *, is_allowed: bool) -> float:
    """Return the seconds until the answer, and check the answer."""
    data = json.dumps(body).encode()
    now = asyncio.get_running_loop().time
    start = now()
    async with session.post(url, data=data) as response:
        answer = await response.json()
    taken = now() - start
    assert answer["response"]["allowed"] is is_allowed, answer
    return taken


async def _may_use(user: Review, namespace: str, name: str) -> bool:
    del user, namespace, name
    return True


def main(arguments: list[str]) -> int:
    """Serve, or measure and print the table; return the exit code, 1 if a goal is missed."""
    if arguments == [SERVE]:
        asyncio.run(serve())
        return 0
    figures = asyncio.run(measure())
    publish("webhook", figures, Console())
    return int(any(figure.ratio > 1 for figure in figures if figure.name != "create, slowest"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
