"""Selection of the end-to-end tests' cluster by `E2E_CLUSTER`."""

import os

from e2e.cluster.existing import ExistingCluster
from e2e.cluster.interface import Cluster
from e2e.cluster.kind import KindCluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import ClusterError

KINDS: dict[str, type[Cluster]] = {"local": LocalCluster, "kind": KindCluster, "existing": ExistingCluster}


def open_cluster() -> Cluster:
    """Return the cluster selected by `E2E_CLUSTER`: `local` (the default), `kind` or `existing`. Start nothing.

    Raises:
        ClusterError: `E2E_CLUSTER` has another value.
    """
    kind = os.environ.get("E2E_CLUSTER") or "local"
    if kind not in KINDS:
        raise ClusterError(f"E2E_CLUSTER is {kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[kind]()
