"""What runs inside the cluster before any job does: DNS and the JobSet controller, both on the system node."""

import json
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.binaries import binaries_dir, ensure_charts
from e2e.cluster.commands import ClusterError, run, wait_until
from e2e.cluster.paths import KUBECONFIG

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


def kubectl(*words: str, stdin: str | None = None) -> str:
    """Run kubectl as the administrator and return what it printed."""
    return run([binaries_dir() / "kubectl", f"--kubeconfig={KUBECONFIG}", *words], stdin=stdin)


def helm(*words: str) -> str:
    """Run helm as the administrator and return what it printed."""
    return run([binaries_dir() / "helm", f"--kubeconfig={KUBECONFIG}", *words])


def ensure_addons() -> None:
    """Install DNS and JobSet, or bring them up to date."""
    kubectl("apply", "--filename", str(MANIFESTS / "coredns.yaml"))
    install_jobset(helm)


def install_jobset(helm: Callable[..., str]) -> None:
    """Install JobSet from its own chart, with the image that was built here, unless it is installed.

    Never an upgrade: the controller writes its certificates into a Secret of the chart, and Helm refuses the conflict.
    """
    namespace = f"--namespace={JOBSET_NAMESPACE}"
    try:
        if json.loads(helm("status", JOBSET_RELEASE, namespace, "--output=json"))["info"]["status"] == "deployed":
            return
        helm("uninstall", JOBSET_RELEASE, namespace)  # an installation that was interrupted
    except ClusterError:
        pass  # there is no such release
    values = f"--values={MANIFESTS / 'jobset-values.yaml'}"
    helm("install", JOBSET_RELEASE, str(ensure_charts() / "jobset"), namespace, "--create-namespace", values)


def wait_for_addons() -> None:
    """Return when DNS answers and JobSet's webhooks admit a JobSet: ready pods alone do not promise that."""
    for namespace, name in (("kube-system", "coredns"), (JOBSET_NAMESPACE, "jobset-controller")):
        kubectl("rollout", "status", f"--namespace={namespace}", f"deployment/{name}", "--timeout=120s")
    probe = json.dumps(PROBE)
    wait_until(
        lambda: bool(kubectl("create", "--dry-run=server", "--filename=-", stdin=probe)),
        "JobSet's webhooks to answer",
        seconds=60,
    )
