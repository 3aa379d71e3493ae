"""The controllers of the benchmark: this operator, and Kubeflow Trainer's, both as processes of this machine."""

import asyncio
import contextlib
import functools
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp
import yaml

from e2e.benchmarks.process_usage import MIB, list_children, memory_bytes
from e2e.cluster.binaries import ensure_charts
from e2e.cluster.go_tools import GoTools
from e2e.cluster.run_program import ClusterError
from e2e.operator_scale.api_server import Manifest, Server, running, until
from trainingjob_operator.shell.check_pool import IDLE_SECONDS
from trainingjob_operator.shell.kinds import TRAINING_JOB

ROOT = Path(__file__).parents[2]
MODULE = "github.com/kubeflow/trainer/v2"
PEER = GoTools(
    Path(__file__).parent / "tools",
    {"trainer-controller-manager": f"{MODULE}/cmd/trainer-controller-manager"},
    "kubeflow-trainer",
    "2 minutes",
)
NAMESPACE = "research"
OPERATOR_NAMESPACE = "trainingjob-system"
METRICS_PORT, PEER_HEALTH_PORT, PEER_METRICS_PORT, PEER_WEBHOOK_PORT = 28080, 28082, 28083, 28084
START_SECONDS = 120.0
NUM_HOSTS = 2
"""Hosts of each job of the benchmark."""


class Controller(Protocol):
    """A controller that makes one JobSet of each of its jobs."""

    name: str
    jobs_path: str

    def make_job(self, name: str) -> Manifest:
        """Return the manifest of a job with `NUM_HOSTS` hosts."""
        ...

    def run(self, server: Server) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """Run the controller, and return when it is ready."""
        ...


@dataclass(frozen=True)
class Operator:
    """This operator, without its webhook: it checks each job when it reconciles it."""

    name: str = "operator"
    jobs_path: str = TRAINING_JOB.path(NAMESPACE)

    def make_job(self, name: str) -> Manifest:
        """Return the demo with two slices of one host."""
        demo = _read_demo()
        spec = demo["spec"] | {
            "slices": demo["spec"]["slices"] | {"topology": "1x2", "min": NUM_HOSTS, "max": NUM_HOSTS},
            "checkpoint": demo["spec"]["checkpoint"] | {"uri": f"/shared/{name}"},
        }
        del spec["scheduling"]
        return demo | {"metadata": {"name": name}, "spec": spec}

    @contextlib.asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the operator. Raises `ClusterError` if it does not become ready."""
        env = os.environ | {
            "KUBECONFIG": str(server.kubeconfig),
            "TRAININGJOB_TRAINER_IMAGE": "trainer:1",
            "TRAININGJOB_NAMESPACE": OPERATOR_NAMESPACE,
            "TRAININGJOB_WEBHOOK_ENABLED": "false",
            "TRAININGJOB_UNCHECKED_SERVICE_ACCOUNTS": "true",
            "TRAININGJOB_METRICS_PORT": str(METRICS_PORT),
        }
        command = [sys.executable, "-m", "trainingjob_operator.shell.main"]
        async with running(self.name, command, server.folder, env) as process:
            await _ready(f"http://127.0.0.1:{METRICS_PORT}/readyz", self.name, server, process)
            yield process


@dataclass(frozen=True)
class KubeflowTrainer:
    """Kubeflow Trainer's controller with its JAX runtime, with the limits of its client."""

    name: str
    requests_per_second: int
    burst: int
    jobs_path: str = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"

    def make_job(self, name: str) -> Manifest:
        """Return a TrainJob of its JAX runtime."""
        runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "jax-distributed"}
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {"runtimeRef": runtime, "trainer": {"numNodes": NUM_HOSTS, "image": "trainer:1"}},
        }

    @contextlib.asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the controller. Raises `ClusterError` if it does not become ready."""
        await asyncio.to_thread(PEER.ensure, PEER.programs)
        folder = server.folder / self.name
        certificates = folder / "k8s-webhook-server" / "serving-certs"  # of a webhook that the API server never calls
        certificates.mkdir(parents=True, exist_ok=True)
        for suffix in ("crt", "key"):
            shutil.copy(server.folder / "certificates" / f"apiserver.{suffix}", certificates / f"tls.{suffix}")
        config = {
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f":{PEER_HEALTH_PORT}"},
            "metrics": {"bindAddress": f":{PEER_METRICS_PORT}", "secureServing": False},
            "webhook": {"port": PEER_WEBHOOK_PORT},
            "leaderElection": {"leaderElect": False},
            "certManagement": {"enable": False},
            "controller": {"groupKindConcurrency": {"TrainJob.trainer.kubeflow.org": 5}},
            "clientConnection": {"qps": self.requests_per_second, "burst": self.burst},
        }
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(config))
        env = os.environ | {"KUBECONFIG": str(server.kubeconfig), "TMPDIR": str(folder)}
        command = [PEER.binaries / "trainer-controller-manager", f"--config={file}"]
        async with running(self.name, command, server.folder, env) as process:
            await _ready(f"http://127.0.0.1:{PEER_HEALTH_PORT}/readyz", self.name, server, process)
            yield process


async def idle_memory(process: asyncio.subprocess.Process) -> float:
    """Return the memory of the operator in MiB after its worker for jobs has ended."""
    await until(lambda: not list_children(process.pid), "the worker for jobs to end", 3 * IDLE_SECONDS, process)
    return memory_bytes(process.pid) / MIB


@functools.cache
def _read_demo() -> Manifest:
    """Return the demo, which is parsed once: the benchmark shares the CPU cores with what it measures."""
    manifest: Manifest = yaml.load((ROOT / "crds/examples/demo.yaml").read_text(), yaml.CSafeLoader)
    return manifest


async def define_kinds(server: Server) -> None:
    """Install the CRDs of JobSet, of this project and of the peer, the peer's JAX runtime, and the namespaces."""
    source = await asyncio.to_thread(PEER.module_folder, MODULE) / "manifests" / "base"
    files = [*(ensure_charts() / "jobset" / "crds").glob("*.yaml"), ROOT / "crds" / "trainingjob.yaml"]
    for file in (*files, *sorted((source / "crds").glob("trainer*.yaml"))):
        await server.define(file)
    runtime = yaml.safe_load((source / "runtimes" / "jax_distributed.yaml").read_text())
    await server.apply("/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes", runtime)
    for name in (NAMESPACE, OPERATOR_NAMESPACE):
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await server.apply("/api/v1/namespaces", manifest)


async def _ready(url: str, name: str, server: Server, process: asyncio.subprocess.Process) -> None:
    async def is_ready() -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession() as client, client.get(url) as response:
                return response.status == 200
        return False

    try:
        await until(is_ready, f"{name} to be ready", START_SECONDS, process)
    except ClusterError as error:
        log = (server.folder / f"{name}.log").read_text()
        raise ClusterError(f"{error}:\n{log[-2000:]}") from error
