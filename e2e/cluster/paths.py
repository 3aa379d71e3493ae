"""Folders of the local cluster: in the checkout, in the user's cache, and in the machine's /run."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

STATE = CHECKOUT / ".cluster"
"""All files that one cluster writes. `down` removes them, except the logs and the image seed."""

LOGS = STATE / "logs"
PKI = STATE / "pki"
NODES = STATE / "nodes"
SHARED = STATE / "shared"
SEED = STATE / "seed"
KUBECONFIG = STATE / "kubeconfig"
IMAGES = STATE / "images.json"
TOPOLOGY = STATE / "topology.json"

RUN = Path("/run/trainingjob-cluster")
"""Process records and the owning checkout.

The folder is outside the checkout, so that any checkout can see and stop the cluster. It is short, because a Unix
socket path has at most 107 characters. A reboot removes it together with the processes.
"""


def cache_dir() -> Path:
    """Return the folder of binaries and images, which are keyed by content and shared by all checkouts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainingjob"
