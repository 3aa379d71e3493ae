"""The product on a cluster, as its users hold it: Helm installs it, kubectl applies jobs and reads them.

The journeys, the demo and the benchmarks stand on this one module; none of them knows what kind of cluster it is.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import audit
from e2e.cluster.commands import ClusterError
from e2e.cluster.images import find_operator_key
from e2e.cluster.interface import Cluster
from e2e.cluster.topology import ROLE_LABEL, SYSTEM_TAINT
from e2e.requests import find_misdeeds
from e2e.status import condition, step_of

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts/trainingjob"
EXAMPLES = ROOT / "crds/examples"
SYSTEM_NAMESPACE = audit.NAMESPACE
RELEASE = "trainingjob"
POLL_SECONDS = 0.5
CLAIM = "shared"
TRAININGJOB = Path(sys.executable).with_name("trainingjob")
"""What `kubectl trainingjob` runs."""

type Manifest = dict[str, Any]


class JourneyError(AssertionError):
    """What was waited for did not come. The text says what was seen instead."""


def wait_until[T](what: str, probe: Callable[[], T | None], timeout: float, seen: Callable[[], str] = str) -> T:
    """Return the first value of `probe` that is not None, asked again until `timeout` seconds have passed.

    Raises:
        JourneyError: None came; `seen` adds what there was instead.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            value = probe()
        except ClusterError as error:  # the API server may be away for a moment: that is what some journeys are about
            if time.monotonic() > end:
                raise JourneyError(f"waited {timeout:.0f} s for {what}; the cluster says {error}") from error
            value = None
        if value is not None:
            return value
        if time.monotonic() > end:
            raise JourneyError(f"waited {timeout:.0f} s for {what}; seen instead: {seen()}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Job:
    """A TrainingJob on the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    def read(self) -> Manifest:
        """Return the object as the API server has it; empty where it is gone."""
        return self.get_json("trainingjob", self.name, "--ignore-not-found")

    def status(self) -> Manifest:
        """Return the status; empty where there is none yet."""
        status: Manifest = self.read().get("status", {})
        return status

    def get_json(self, *arguments: str) -> Manifest:
        """Return what `kubectl get` prints as JSON; empty where it prints nothing."""
        text = self.cluster.kubectl("get", "-n", self.namespace, *arguments, "-o", "json")
        return json.loads(text) if text.strip() else {}

    def pods(self) -> dict[str, Manifest]:
        """Return the job's pods by name."""
        uid = self.read().get("metadata", {}).get("uid", "gone")
        return {pod["metadata"]["name"]: pod for pod in self.children("pods", uid)}

    def children(self, kind: str, uid: str) -> list[Manifest]:
        """Return the objects of a kind that carry the job's UID."""
        items: list[Manifest] = self.get_json(kind, "-l", f"trainingjob.dev/job-uid={uid}").get("items", [])
        return items

    def wait(self, what: str, holds: Callable[[Manifest], Any], timeout: float) -> Manifest:
        """Return the first status for which `holds` is true."""

        def probe() -> Manifest | None:
            status = self.status()
            return status if holds(status) else None

        return wait_until(f"{self.name}: {what}", probe, timeout, seen=self.describe)

    def wait_for_step(self, step: int, timeout: float) -> Manifest:
        """Return the first status with at least this step."""
        return self.wait(f"step {step}", lambda status: step_of(status) >= step, timeout)

    def wait_for_phase(self, phase: str, timeout: float) -> Manifest:
        """Return the first status with this phase; another end than that one ends the wait."""
        ended = {"Succeeded", "Failed"} - {phase}

        def holds(status: Manifest) -> bool:
            if status.get("phase") in ended:
                raise JourneyError(f"{self.name} ended as {status['phase']}, not {phase}: {self.describe()}")
            return status.get("phase") == phase

        return self.wait(f"phase {phase}", holds, timeout)

    def describe(self) -> str:
        """Return the status and the pods in a few lines, for a failed wait."""
        status = self.status()
        shown = {key: status.get(key) for key in ("phase", "problems", "world", "progress", "restarts", "attempts")}
        conditions = {c["type"]: f"{c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])}
        pods = self.cluster.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
        return json.dumps(shown | {"conditions": conditions}, indent=1) + "\n" + pods

    def command(self, name: str, *words: str) -> str:
        """Run a command of `kubectl trainingjob` on the job and return what it prints.

        Raises:
            JourneyError: it did not succeed.
        """
        where = ("-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig()))
        line = [TRAININGJOB, name, self.name, *words, *where]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise JourneyError(f"`{name}` ended with {done.returncode}: {done.stdout}\n{self.describe()}")
        return done.stdout

    def patch(self, spec: Manifest) -> None:
        """Change parts of the spec, as a user's edit does."""
        change = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "trainingjob", self.name, "-n", self.namespace, "--type=merge", "-p", change)

    def delete(self) -> None:
        """Delete the job and wait until the API server has let go of it."""
        self.cluster.kubectl("delete", "trainingjob", self.name, "-n", self.namespace, "--ignore-not-found")


def load_example(name: str, **changes: Any) -> Manifest:
    """Return an example as a manifest, with parts of its spec replaced.

    A change's key is a path with `__` between its parts: `training__steps=50`.
    """
    manifest: Manifest = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return change(manifest, changes)


def change(manifest: Manifest, changes: Mapping[str, Any]) -> Manifest:
    """Set parts of a manifest's spec in place, by path with `__` between its parts; return it."""
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = manifest["spec"]
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return manifest


def system_placement(cluster: Cluster) -> Manifest:
    """Return the part of a pod's spec that puts it where no drill strikes, on clusters that know such a place."""
    if not cluster.can_kill_nodes:
        return {}
    return {
        "nodeSelector": {ROLE_LABEL: "system"},
        "tolerations": [{"key": SYSTEM_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    }


def shared_reader(namespace: str, cluster: Cluster) -> Manifest:
    """Return a pod that mounts the shared volume and waits: files are read through it on every kind of cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "reader", "namespace": namespace},
        "spec": {
            **system_placement(cluster),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "reader",
                    "image": cluster.trainer_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": CLAIM, "mountPath": "/shared"}],
                }
            ],
            "volumes": [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}],
        },
    }


@dataclass
class Product:
    """The operator on a cluster."""

    cluster: Cluster
    values: dict[str, str] = field(default_factory=dict)

    def install(self) -> None:
        """Install or upgrade the chart with the cluster's images, and wait until it serves.

        An operator of an earlier state of this checkout makes way for one of today's.
        """
        values = {
            "image.repository": self.cluster.operator_image.rpartition(":")[0],
            "image.tag": self.cluster.operator_image.rpartition(":")[2],
            "image.pullPolicy": "IfNotPresent",
            "trainer.image.repository": self.cluster.trainer_image.rpartition(":")[0],
            "trainer.image.tag": self.cluster.trainer_image.rpartition(":")[2],
            "podAnnotations.sources": find_operator_key(),
            **self.values,
        }
        flags = [flag for key, value in values.items() for flag in ("--set-string", f"{key}={value}")]
        for key, value in system_placement(self.cluster).items():
            flags += ["--set-json", f"{key}={json.dumps(value)}"]
        self.cluster.helm(
            *("upgrade", "--install", RELEASE, str(CHART)),
            *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
            *flags,
        )

    def operator_pods(self) -> list[Manifest]:
        """Return the operator's pods."""
        text = self.cluster.kubectl(
            "get", "pods", "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/name=trainingjob", "-o", "json"
        )
        items: list[Manifest] = json.loads(text)["items"]
        return items

    def operator_errors(self, since: datetime) -> list[str]:
        """Return the errors and tracebacks that the operators which run now have logged since a time."""
        lines: list[str] = []
        for pod in self.operator_pods():
            is_going = "deletionTimestamp" in pod["metadata"]
            if pod["status"].get("phase") == "Running" and not is_going:
                name, time_told = pod["metadata"]["name"], since.isoformat()
                told = self.cluster.kubectl("logs", name, "-n", SYSTEM_NAMESPACE, f"--since-time={time_told}")
                lines += told.splitlines()
        return [line for line in lines if '"level": "error"' in line or "Traceback (most recent call last)" in line]

    def misdeeds(self, since: datetime) -> list[str]:
        """Return what operators asked of the API server since a time and may never ask, where that is recorded."""
        return list(find_misdeeds(self.cluster.read_requests(since), SYSTEM_NAMESPACE))

    def scale_operator(self, replicas: int) -> None:
        """Set the number of operator pods and wait until they run and one of them leads, or until they are gone."""
        self.cluster.kubectl(
            "scale", "deployment/trainingjob-operator", "-n", SYSTEM_NAMESPACE, f"--replicas={replicas}"
        )

        def settled() -> bool | None:
            pods = self.operator_pods()
            running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            leading = [pod for pod in running if condition(pod["status"], "Ready").get("status") == "True"]
            return (len(pods) == len(running) == replicas and len(leading) == min(replicas, 1)) or None

        wait_until(
            f"{replicas} operator pods",
            settled,
            timeout=120,
            seen=lambda: str(
                {pod["metadata"]["name"]: pod["status"].get("conditions") for pod in self.operator_pods()}
            ),
        )

    def make_namespace(self, name: str) -> None:
        """Make a namespace that enforces Pod Security `restricted`, with the shared volume and a pod that reads it."""
        manifest = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
        self.apply(manifest)
        self.cluster.create_shared_volume(name, CLAIM)
        self.apply(shared_reader(name, self.cluster))
        self.cluster.kubectl("wait", "-n", name, "pod/reader", "--for=condition=Ready", "--timeout=120s")

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """Make a namespace as above for a while, and delete it with all that is in it afterwards."""
        self.make_namespace(name)
        try:
            yield name
        finally:
            self.cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true", "--timeout=120s")
            self.cluster.kubectl("delete", "persistentvolume", f"{name}-{CLAIM}", "--ignore-not-found")

    def run_in_reader(self, namespace: str, *command: str) -> str:
        """Run a command in the pod that sees the shared volume at /shared, and return what it prints."""
        return self.cluster.kubectl("exec", "-n", namespace, "reader", "--", *command)

    def apply(self, *manifests: Manifest) -> str:
        """Apply manifests and return what kubectl says."""
        text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        return self.cluster.kubectl("apply", "-f", "-", stdin=text)

    def submit(self, namespace: str, manifest: Manifest, name: str = "") -> Job:
        """Apply a TrainingJob into a namespace and return its handle."""
        metadata = manifest["metadata"] | {"namespace": namespace} | ({"name": name} if name else {})
        self.apply(manifest | {"metadata": metadata})
        return Job(self.cluster, namespace, metadata["name"])
