"""Cluster add-ons that jobs depend on: DNS and the JobSet controller, both on the system node."""

import json
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.binaries import binaries_dir, ensure_charts
from e2e.cluster.paths import KUBECONFIG
from e2e.cluster.run_program import ClusterError, run, wait_until

MANIFESTS = Path(__file__).parent / "manifests"
JOBSET_NAMESPACE = "jobset-system"
JOBSET_RELEASE = "jobset"

PROBE = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "probe",
                "template": {
                    "spec": {
                        "template": {
                            "spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe"}]}
                        }
                    }
                },
            }
        ]
    },
}


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Run kubectl as the administrator and return its output."""
    return run([binaries_dir() / "kubectl", f"--kubeconfig={KUBECONFIG}", *arguments], stdin=stdin)


def helm(*arguments: str) -> str:
    """Run helm as the administrator and return its output."""
    return run([binaries_dir() / "helm", f"--kubeconfig={KUBECONFIG}", *arguments])


def ensure_addons() -> None:
    """Install or update DNS and JobSet."""
    kubectl("apply", "--filename", str(MANIFESTS / "coredns.yaml"))
    install_jobset(helm)


def install_jobset(helm: Callable[..., str]) -> None:
    """Install JobSet from its own chart with the locally built image, unless it is installed.

    The chart is never upgraded: the controller writes its certificates into a Secret of the chart, and Helm rejects the
    conflict.
    """
    namespace = f"--namespace={JOBSET_NAMESPACE}"
    try:
        if json.loads(helm("status", JOBSET_RELEASE, namespace, "--output=json"))["info"]["status"] == "deployed":
            return
        helm("uninstall", JOBSET_RELEASE, namespace)  # left by an interrupted installation
    except ClusterError:
        pass  # there is no such release
    values = f"--values={MANIFESTS / 'jobset-values.yaml'}"
    helm("install", JOBSET_RELEASE, str(ensure_charts() / "jobset"), namespace, "--create-namespace", values)


def wait_for_addons() -> None:
    """Wait until DNS is ready and JobSet's webhooks admit a JobSet; ready pods alone do not guarantee that."""
    for namespace, name in (("kube-system", "coredns"), (JOBSET_NAMESPACE, "jobset-controller")):
        kubectl("rollout", "status", f"--namespace={namespace}", f"deployment/{name}", "--timeout=120s")
    probe = json.dumps(PROBE)
    wait_until(
        lambda: bool(kubectl("create", "--dry-run=server", "--filename=-", stdin=probe)),
        "JobSet's webhooks to answer",
        seconds=60,
    )
