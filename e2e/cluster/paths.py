"""Where the local cluster keeps its things: in the checkout, in the user's cache, and in the machine's /run."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

STATE = CHECKOUT / ".cluster"
"""Everything one cluster writes. Removed by `down`, except logs and the image seed."""

LOGS = STATE / "logs"
PKI = STATE / "pki"
NODES = STATE / "nodes"
SHARED = STATE / "shared"
SEED = STATE / "seed"
KUBECONFIG = STATE / "kubeconfig"
IMAGES = STATE / "images.json"
TOPOLOGY = STATE / "topology.json"

RUN = Path("/run/trainingjob-cluster")
"""Process records and the owning checkout. Outside the checkout, so that any checkout can see and stop the cluster;
short, because a Unix socket path holds 107 characters; gone after a reboot, like the processes."""


def cache_dir() -> Path:
    """Return the folder for binaries and images, which are keyed by content and shared by all checkouts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainingjob"
