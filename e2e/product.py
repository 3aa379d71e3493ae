"""The installed product on a cluster, used as users do: through Helm, kubectl and the command line.

Journeys, demo and benchmarks share this module. None of them depends on the kind of cluster.
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

from e2e.api_audit import find_forbidden_requests
from e2e.cluster import audit
from e2e.cluster.images import find_operator_key
from e2e.cluster.interface import Cluster
from e2e.cluster.run_program import ClusterError
from e2e.cluster.topology import ROLE_LABEL, SYSTEM_TAINT
from e2e.status import condition, step_of
from trainingjob_operator.shell.leader_label import LEADER_LABEL

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts/trainingjob"
EXAMPLES = ROOT / "crds/examples"
SYSTEM_NAMESPACE = audit.NAMESPACE
RELEASE = "trainingjob"
POLL_SECONDS = 0.5
CLAIM = "shared"
TRAININGJOB = Path(sys.executable).with_name("trainingjob")
"""The executable behind `kubectl trainingjob`."""

type Manifest = dict[str, Any]


class JourneyError(AssertionError):
    """An awaited state did not occur. The text gives the actual state."""


def wait_until[T](
    what: str, probe: Callable[[], T | None], timeout: float, describe_actual: Callable[[], str] = str
) -> T:
    """Return the first value of `probe` that is not None; poll for at most `timeout` seconds.

    Raises:
        JourneyError: `probe` returned only None; the text ends with the result of `describe_actual`, the actual state.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            value = probe()
        except ClusterError as error:  # some journeys make the API server unavailable for a moment
            if time.monotonic() > end:
                raise JourneyError(f"waited {timeout:.0f} s for {what}; the cluster says {error}") from error
            value = None
        if value is not None:
            return value
        if time.monotonic() > end:
            raise JourneyError(f"waited {timeout:.0f} s for {what}; seen instead: {describe_actual()}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Job:
    """A TrainingJob on the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    def read(self) -> Manifest:
        """Return the object from the API server; empty if it does not exist."""
        return self.get_json("trainingjob", self.name, "--ignore-not-found")

    def status(self) -> Manifest:
        """Return the status; empty if there is none yet."""
        status: Manifest = self.read().get("status", {})
        return status

    def get_json(self, *arguments: str) -> Manifest:
        """Return the JSON output of `kubectl get`; empty if it prints nothing."""
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

        return wait_until(f"{self.name}: {what}", probe, timeout, describe_actual=self.describe)

    def wait_for_step(self, step: int, timeout: float) -> Manifest:
        """Return the first status with at least this step."""
        return self.wait(f"step {step}", lambda status: step_of(status) >= step, timeout)

    def wait_for_phase(self, phase: str, timeout: float) -> Manifest:
        """Return the first status with this phase.

        Raises:
            JourneyError: the job ended in another phase, or the timeout passed.
        """
        ended = {"Succeeded", "Failed"} - {phase}

        def holds(status: Manifest) -> bool:
            if status.get("phase") in ended:
                raise JourneyError(f"{self.name} ended as {status['phase']}, not {phase}: {self.describe()}")
            return status.get("phase") == phase

        return self.wait(f"phase {phase}", holds, timeout)

    def describe(self) -> str:
        """Return a summary of the status and the pods, for a failed wait."""
        status = self.status()
        shown = {key: status.get(key) for key in ("phase", "problems", "world", "progress", "restarts", "attempts")}
        conditions = {c["type"]: f"{c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])}
        pods = self.cluster.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
        return json.dumps(shown | {"conditions": conditions}, indent=1) + "\n" + pods

    def command(self, name: str, *arguments: str) -> str:
        """Run a command of `kubectl trainingjob` on the job and return its output.

        Raises:
            JourneyError: the command failed.
        """
        where = ("-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig()))
        command = [TRAININGJOB, name, self.name, *arguments, *where]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise JourneyError(f"`{name}` ended with {done.returncode}: {done.stdout}\n{self.describe()}")
        return done.stdout

    def patch(self, spec: Manifest) -> None:
        """Change parts of the spec, as `kubectl patch` by a user would."""
        change = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "trainingjob", self.name, "-n", self.namespace, "--type=merge", "-p", change)

    def delete(self) -> None:
        """Delete the job and wait until the API server has removed it."""
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
    """Return the part of a pod's spec that selects the system node, which no drill kills; empty without drills."""
    if not cluster.can_kill_nodes:
        return {}
    return {
        "nodeSelector": {ROLE_LABEL: "system"},
        "tolerations": [{"key": SYSTEM_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    }


def shared_reader(namespace: str, cluster: Cluster) -> Manifest:
    """Return an idle pod that mounts the shared volume. Tests read files through it on every kind of cluster."""
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
    chart: Path = CHART

    def install(self) -> None:
        """Install or upgrade the chart with the cluster's images, and wait until the operator is ready.

        An operator from an earlier state of this checkout is replaced.
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
            *("upgrade", "--install", RELEASE, str(self.chart)),
            *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
            *flags,
        )
        wait_until("the replaced pods to end", self.is_rolled_out, timeout=60)

    def is_rolled_out(self) -> bool | None:  # None: not yet
        """Return whether the pods of an earlier installation are gone."""
        pods = (*self.operator_pods(), *self.webhook_pods())
        return True if not any("deletionTimestamp" in pod["metadata"] for pod in pods) else None

    def operator_pods(self) -> list[Manifest]:
        """Return the operator's pods."""
        return self._list_system_pods("trainingjob")

    def webhook_pods(self) -> list[Manifest]:
        """Return the pods of the operator's webhook."""
        return self._list_system_pods("trainingjob-webhook")

    def leader(self) -> str:
        """Return the name of the operator's pod that leads and that agents reach. Empty: there is none now."""
        lease = self.cluster.kubectl("get", "lease", "trainingjob-operator", "-n", SYSTEM_NAMESPACE, "-o", "json")
        holder = json.loads(lease)["spec"].get("holderIdentity") or ""
        labelled = [
            pod["metadata"]["name"] for pod in self.operator_pods() if LEADER_LABEL in pod["metadata"]["labels"]
        ]
        return holder if holder in labelled else ""

    def _list_system_pods(self, name: str) -> list[Manifest]:
        text = self.cluster.kubectl(
            "get", "pods", "-n", SYSTEM_NAMESPACE, "-l", f"app.kubernetes.io/name={name}", "-o", "json"
        )
        items: list[Manifest] = json.loads(text)["items"]
        return items

    def operator_errors(self, since: datetime) -> list[str]:
        """Return the errors and tracebacks that the running operators and webhooks have logged since a time."""
        lines: list[str] = []
        for pod in (*self.operator_pods(), *self.webhook_pods()):
            is_terminating = "deletionTimestamp" in pod["metadata"]
            if pod["status"].get("phase") == "Running" and not is_terminating:
                name, since_time = pod["metadata"]["name"], since.isoformat()
                log_text = self.cluster.kubectl("logs", name, "-n", SYSTEM_NAMESPACE, f"--since-time={since_time}")
                lines += log_text.splitlines()
        return [line for line in lines if '"level": "error"' in line or "Traceback (most recent call last)" in line]

    def forbidden_requests(self, since: datetime) -> list[str]:
        """Return the operators' forbidden API requests since a time; empty if the cluster has no audit log."""
        return list(find_forbidden_requests(self.cluster.read_requests(since), SYSTEM_NAMESPACE))

    def scale_operator(self, replicas: int) -> None:
        """Set the number of operator pods. Wait until they run and one of them leads, or until they are gone."""
        self.cluster.kubectl(
            "scale", "deployment/trainingjob-operator", "-n", SYSTEM_NAMESPACE, f"--replicas={replicas}"
        )

        def settled() -> bool | None:
            pods = self.operator_pods()
            running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            ready = [pod for pod in running if condition(pod["status"], "Ready").get("status") == "True"]
            leading = [pod for pod in ready if LEADER_LABEL in pod["metadata"]["labels"]]
            return (len(pods) == len(ready) == replicas and len(leading) == min(replicas, 1)) or None

        wait_until(
            f"{replicas} operator pods",
            settled,
            timeout=120,
            describe_actual=lambda: str(
                {pod["metadata"]["name"]: pod["status"].get("conditions") for pod in self.operator_pods()}
            ),
        )

    def make_namespace(self, name: str) -> None:
        """Create a namespace that enforces Pod Security `restricted`, with the shared volume and its reader pod."""
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
        """Create a namespace as `make_namespace` does, and delete it with its contents when the context ends."""
        self.make_namespace(name)
        try:
            yield name
        finally:
            self.cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true", "--timeout=120s")
            self.cluster.kubectl("delete", "persistentvolume", f"{name}-{CLAIM}", "--ignore-not-found")

    def run_in_reader(self, namespace: str, *command: str) -> str:
        """Run a command in the reader pod, which has the shared volume at /shared, and return its output."""
        return self.cluster.kubectl("exec", "-n", namespace, "reader", "--", *command)

    def apply(self, *manifests: Manifest) -> str:
        """Apply manifests and return kubectl's output."""
        text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        return self.cluster.kubectl("apply", "-f", "-", stdin=text)

    def submit(self, namespace: str, manifest: Manifest, name: str = "") -> Job:
        """Apply a TrainingJob into a namespace and return its handle."""
        metadata = manifest["metadata"] | {"namespace": namespace} | ({"name": name} if name else {})
        self.apply(manifest | {"metadata": metadata})
        return Job(self.cluster, namespace, metadata["name"])
