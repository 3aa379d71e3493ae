"""Control groups of the nodes: one subtree `/trainingjob/<node>` per node, on cgroup v1, hybrid and v2 hosts.

Kubelets that share a subtree treat each other's pods as orphans and kill them. The subtree also makes a node freezable
as a whole, because it contains the node's daemons and its pods.
"""

from functools import partial
from pathlib import Path

from e2e.cluster.run_program import wait_until

MOUNT = Path("/sys/fs/cgroup")
TREE = "trainingjob"
DAEMONS = "daemons"
V1_FOLDERS = (
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "pids",
    "systemd",
    "unified",
)


def is_unified() -> bool:
    """Return whether the host uses only cgroup v2. A hybrid host counts as v1, because its controllers are there."""
    return (MOUNT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Return the root folder of every hierarchy with controllers, each folder once."""
    if is_unified():
        return [MOUNT]
    found = (MOUNT / name for name in V1_FOLDERS)
    return sorted({path.resolve() for path in found if path.is_dir()})  # cpu and cpuacct are often the same folder


def has_cpu_quota() -> bool:
    """Return whether this machine has a CPU quota, as in a container with a CPU limit.

    The kernel then rejects a container quota larger than the machine's quota.
    """
    unified, v1 = MOUNT / "cpu.max", MOUNT / "cpu" / "cpu.cfs_quota_us"
    if unified.exists():
        return not unified.read_text().startswith("max")
    return v1.exists() and int(v1.read_text()) > 0


def kubelet_root(node: str) -> str:
    """Return the node's subtree in the form of the kubelet's `cgroupRoot`."""
    return f"/{TREE}/{node}"


def create(node: str) -> None:
    """Create the node's subtree under every controller; the kubelet does not start without it."""
    for root in hierarchies():
        for group in (root / TREE, root / TREE / node, root / TREE / node / DAEMONS):
            if is_unified():
                _delegate(group.parent)
            group.mkdir(exist_ok=True)
            _fill_cpuset(group)


def _delegate(parent: Path) -> None:
    """Enable all of a v2 group's controllers for its children."""
    controllers = (parent / "cgroup.controllers").read_text().split()
    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _fill_cpuset(group: Path) -> None:
    """Copy the parent's CPUs and memory nodes: a new v1 cpuset is empty, and an empty one accepts no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = group / name
        if not is_unified() and file.exists() and not file.read_text().strip():
            file.write_text((group.parent / name).read_text())


def daemon_files(node: str) -> list[Path]:
    """Return the files that move a node's daemon into the subtree."""
    return [_tracking_root() / TREE / node / DAEMONS / "cgroup.procs"]


def _tracking_root() -> Path:
    """Return the hierarchy that contains every process of a node: the freezer on v1, the only one on v2."""
    return MOUNT if is_unified() else MOUNT / "freezer"


def set_frozen(node: str, *, frozen: bool) -> None:
    """Freeze or thaw every process of a node, containers included."""
    if is_unified():
        (MOUNT / TREE / node / "cgroup.freeze").write_text("1" if frozen else "0")
        return
    state = MOUNT / "freezer" / TREE / node / "freezer.state"
    want = "FROZEN" if frozen else "THAWED"
    state.write_text(want)
    wait_until(lambda: state.read_text().strip() == want, f"node {node} to be {want.lower()}", seconds=10)


def is_frozen(node: str) -> bool:
    """Return whether a node's processes are frozen."""
    if is_unified():
        file = MOUNT / TREE / node / "cgroup.freeze"
        return file.exists() and file.read_text().strip() == "1"
    file = MOUNT / "freezer" / TREE / node / "freezer.state"
    return file.exists() and file.read_text().strip() != "THAWED"


def members(node: str, pod_uid: str = "") -> list[int]:
    """Return the pids of all processes in the node's subtree, or of one pod there."""
    top = _tracking_root() / TREE / node
    files = [folder / "cgroup.procs" for folder, _, _ in top.walk() if f"/pod{pod_uid}" in str(folder) or not pod_uid]
    return [int(pid) for file in files if file.exists() for pid in file.read_text().split()]


def nodes() -> list[str]:
    """Return the names of all machines with a subtree."""
    top = _tracking_root() / TREE
    return sorted(path.name for path in top.iterdir() if path.is_dir()) if top.is_dir() else []


def remove(node: str) -> None:
    """Remove the node's subtree; its processes must have ended."""
    for root in hierarchies():
        wait_until(partial(_is_removed, root / TREE / node), f"control groups of {node} to empty", seconds=20)


def remove_tree() -> None:
    """Remove the common parent of all nodes' subtrees when it is empty."""
    for root in hierarchies():
        wait_until(partial(_is_removed, root / TREE), "the common control group to empty", seconds=20)


def _is_removed(group: Path) -> bool:
    """Remove a group and its children, deepest first; return False if a busy group remains."""
    if not group.exists():
        return True
    for folder, _, _ in group.walk(top_down=False):
        try:
            folder.rmdir()
        except OSError:  # a dying process is still a member
            return False
    return True
