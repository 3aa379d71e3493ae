"""Which cluster the end-to-end tests use: `E2E_CLUSTER` chooses."""

import os

from e2e.cluster.commands import ClusterError
from e2e.cluster.existing import ExistingCluster
from e2e.cluster.interface import Cluster
from e2e.cluster.kind import KindCluster
from e2e.cluster.local import LocalCluster

KINDS: dict[str, type[Cluster]] = {"local": LocalCluster, "kind": KindCluster, "existing": ExistingCluster}


def open_cluster() -> Cluster:
    """Return the cluster that `E2E_CLUSTER` names: `local` (the default), `kind` or `existing`. Starts nothing.

    Raises:
        ClusterError: It names something else.
    """
    kind = os.environ.get("E2E_CLUSTER") or "local"
    if kind not in KINDS:
        raise ClusterError(f"E2E_CLUSTER is {kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[kind]()
