"""Kubernetes and its companion programs."""

import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from e2e.cluster.go_tools import GoTools

TOOLS = Path(__file__).parent / "tools"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy")
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
JOBSET = "sigs.k8s.io/jobset"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
    **{name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in CONTAINERD},
    "helm": "helm.sh/helm/v4/cmd/helm",
    "jobset": JOBSET,
    "coredns": "trainingjob.dev/e2e/cluster/coredns",
}
"""Go package of each binary."""
CHARTS = "jobset-charts"
"""Folder beside the binaries with the Helm charts of the same JobSet release."""


def binaries_dir() -> Path:
    """Return the folder of the binaries, which may not exist yet."""
    return _tools().binaries


def ensure_binaries(names: Iterable[str] = PROGRAMS) -> None:
    """Build the binaries that the cache lacks.

    Raises:
        ClusterError: a build failed; the message ends with the compiler's output.
    """
    _tools().ensure(names)


def ensure_charts() -> Path:
    """Return the folder of JobSet's Helm charts, copied from the source of its release."""
    charts = binaries_dir() / CHARTS
    if not charts.exists():
        scratch = charts.with_suffix(".new")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(_tools().module_folder(JOBSET) / "charts", scratch)
        scratch.rename(charts)
    return charts


@cache
def _tools() -> GoTools:
    version = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (TOOLS / "go.mod").read_text())
    assert version, "go.mod names no version of Kubernetes"
    # Without this flag every component reports v0.0.0, and Helm charts reject the cluster.
    version_flag = f"-X k8s.io/component-base/version.gitVersion={version[1]}"
    return GoTools(TOOLS, PROGRAMS, "binaries", "10 minutes", version_flag)
