"""Ownership of the machine's single local cluster by one checkout.

Bridge addresses, control groups and the run directory belong to the machine, so two clusters cannot coexist.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.paths import CHECKOUT, RUN
from e2e.cluster.processes import find_process, recorded_machines
from e2e.cluster.run_program import ClusterError

OWNER = RUN / "checkout"
LOCK = RUN.with_suffix(".lock")


@contextmanager
def hold_lock() -> Iterator[None]:
    """Hold a lock, so that only one command at a time changes the cluster; others wait."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def live_machines() -> list[str]:
    """Return the names of the running machines of any checkout."""
    return [name for name in recorded_machines() if find_process(name, "init") is not None]


def check_owner() -> None:
    """Check that no cluster of another checkout is running.

    Raises:
        ClusterError: one is running; the message names the checkout and the command that stops it.
    """
    owner = find_owner()
    if owner is not None and owner != CHECKOUT and live_machines():
        raise ClusterError(
            f"the cluster of {owner} is up, and a machine holds one at a time; "
            f"stop it with: cd {owner} && python -m e2e.cluster down"
        )


def find_owner() -> Path | None:
    """Return the checkout that last started a cluster on this machine; None if there is no cluster."""
    return Path(OWNER.read_text()) if OWNER.exists() else None


def record_owner() -> None:
    """Record this checkout as the cluster's owner."""
    check_owner()
    RUN.mkdir(parents=True, exist_ok=True)
    OWNER.write_text(str(CHECKOUT))
