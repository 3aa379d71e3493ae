"""Debian packages that the cluster needs, installed if missing."""

import os
import shutil
from pathlib import Path

from e2e.cluster.run_program import ClusterError, run

NODE_PACKAGES = {
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
}
"""Debian package by the program that it provides."""

IMAGE_PACKAGES = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "busybox": "busybox-static",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}


def ensure_packages() -> None:
    """Install the missing packages.

    Raises:
        ClusterError: the caller is not root, or packages are missing and the machine has no apt-get.
    """
    if os.geteuid() != 0:
        raise ClusterError("the local cluster makes namespaces and mounts: run it as root, or set E2E_CLUSTER=kind")
    required = {**NODE_PACKAGES, **IMAGE_PACKAGES}
    missing = sorted(package for program, package in required.items() if not _exists(program))
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"install {', '.join(missing)}: this machine has no apt-get, so it cannot be done for you")
    print(f"installing {', '.join(missing)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
    try:
        run(install, env=env)
    except ClusterError:  # the package lists are missing or outdated
        run(["apt-get", "update", "--quiet"], env=env)
        run(install, env=env)


def _exists(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None
