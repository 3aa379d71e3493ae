"""Whose cluster it is: a machine holds one local cluster at a time, and this says which checkout's.

Bridge addresses, control groups and the run directory belong to the machine, so two clusters cannot live side by side.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.commands import ClusterError
from e2e.cluster.paths import CHECKOUT, RUN
from e2e.cluster.processes import find_process, recorded_machines

OWNER = RUN / "checkout"
LOCK = RUN.with_suffix(".lock")


@contextmanager
def exclusive() -> Iterator[None]:
    """Let one command at a time change the cluster; others wait."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def live_machines() -> list[str]:
    """Return the names of the machines that are on, of whichever checkout."""
    return [name for name in recorded_machines() if find_process(name, "init") is not None]


def check_owner() -> None:
    """Refuse to touch a cluster that another checkout brought up.

    Raises:
        ClusterError: One is up; the message says where and how to stop it.
    """
    owner = find_owner()
    if owner is not None and owner != CHECKOUT and live_machines():
        raise ClusterError(
            f"the cluster of {owner} is up, and a machine holds one at a time; "
            f"stop it with: cd {owner} && python -m e2e.cluster down"
        )


def find_owner() -> Path | None:
    """Return the checkout that last brought a cluster up on this machine; None: there is no cluster."""
    return Path(OWNER.read_text()) if OWNER.exists() else None


def claim() -> None:
    """Write down that the cluster is this checkout's."""
    check_owner()
    RUN.mkdir(parents=True, exist_ok=True)
    OWNER.write_text(str(CHECKOUT))
