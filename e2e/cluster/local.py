"""The local cluster: real nodes, real containers and the real JobSet controller on one Linux machine."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from e2e.cluster import addons, audit, cgroups, control_plane, image_store, images, network, node, owner
from e2e.cluster.binaries import ensure_binaries
from e2e.cluster.interface import gather_objects
from e2e.cluster.machine import Machine
from e2e.cluster.packages import ensure_packages
from e2e.cluster.paths import CHECKOUT, KUBECONFIG, LOGS, NODES, RUN, SEED, SHARED, STATE, TOPOLOGY
from e2e.cluster.processes import Process, boot_id, command_line, recorded_machines, start_time
from e2e.cluster.progress import print_progress
from e2e.cluster.run_program import ClusterError, wait_until
from e2e.cluster.shared_volume import TRAINER_UID, shared_volume
from e2e.cluster.topology import TPU_RESOURCE, Node, Topology

# Kept by `down`: the logs, and the images for the next start.
KEPT_BY_DOWN = (LOGS, SEED)


class LocalCluster:
    """The cluster of this checkout. The object is stateless: all state is in `.cluster` and in the kernel.

    `topology` is used by `up` if no cluster is running; None: two slices of two hosts.
    """

    name = "local"
    can_kill_nodes = True
    operator_image = images.OPERATOR_IMAGE
    trainer_image = images.TRAINER_IMAGE

    def __init__(self, topology: Topology | None = None) -> None:
        self._requested_topology = topology

    def is_up(self) -> bool:
        """Return whether a cluster of this checkout is running, at least partly."""
        return owner.find_owner() == CHECKOUT and network.SWITCH.find_init() is not None

    def up(self) -> None:
        """Start the cluster, or repair missing parts; return when jobs can be created.

        Raises:
            ClusterError: another checkout's cluster is running, or this one is running with another topology.
        """
        with owner.hold_lock():
            owner.record_owner()
            if self.is_up():
                self._choose_topology()  # fail before the builds, not after
            ensure_packages()
            built = _build_all()
            if network.SWITCH.find_init() is None:
                self._start_from_scratch(built)
            topology = self._choose_topology()
            self._start(topology.nodes(), built)
        print_progress("the cluster is up: export KUBECONFIG=" + str(KUBECONFIG))

    def down(self) -> None:
        """Stop the cluster and remove all its files except logs and images; do nothing if it is down."""
        with owner.hold_lock():
            owner.check_owner()
            _kill_machines()
            for folder in node.FIXED_FOLDERS:
                with suppress(OSError):  # not empty, so not created by this cluster
                    folder.rmdir()
            _empty_state()
            shutil.rmtree(RUN, ignore_errors=True)

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return KUBECONFIG

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output."""
        return addons.kubectl(*arguments, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm and return its output."""
        return addons.helm(*arguments)

    def topology(self) -> Topology:
        """Return the topology of the running cluster.

        Raises:
            ClusterError: no cluster is running.
        """
        if not TOPOLOGY.exists():
            raise ClusterError("the cluster is down; start it with `python -m e2e.cluster up`")
        return Topology(**json.loads(TOPOLOGY.read_text()))

    def worker_nodes(self) -> list[str]:
        """Return the names of the training nodes, in order of slice and host."""
        return [machine_node.name for machine_node in self.topology().nodes() if not machine_node.is_system]

    def node_names(self) -> list[str]:
        """Return the names of all nodes."""
        return [machine_node.name for machine_node in self.topology().nodes()]

    def load_images(self) -> None:
        """Build the images from the checkout and load them into every running node."""
        with owner.hold_lock():
            built = images.build([*images.system_recipes(), *images.project_recipes()])
            image_store.record_images(built)
            powered = [
                machine_node
                for machine_node in self.topology().nodes()
                if Machine(machine_node.name).is_running("containerd")
            ]
            _in_parallel([partial(self._load_recorded_images, machine_node) for machine_node in powered])

    def add_image(self, recipe: images.Recipe, nodes: Iterable[str]) -> None:
        """Build an image that only some journeys need, and load it into nodes."""
        with owner.hold_lock():
            built = images.build([recipe])
            for name in nodes:
                image_store.load(Machine(name), node.node_root(name), built)

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create an empty ReadWriteMany claim that the trainer's user may write to."""
        folder = SHARED / namespace / claim
        volume, request = shared_volume(namespace, claim, folder)
        if not self.kubectl("get", "persistentvolume", volume["metadata"]["name"], "--ignore-not-found"):
            shutil.rmtree(folder, ignore_errors=True)  # left by an earlier namespace of this name
            folder.mkdir(parents=True)
            os.chown(folder, TRAINER_UID, TRAINER_UID)
        for manifest in (volume, request):
            self.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))

    def kill_node(self, node: str) -> None:
        """Power off a node: all its processes end at once, without any shutdown message."""
        found = self._find(node)
        network.disconnect_machine(found.octet)  # first: the kernel would send the peers of killed processes a close
        Machine(found.name).kill()

    def restore_node(self, node: str) -> None:
        """Power on a node after `kill_node`, and return when it is Ready."""
        found = self._find(node)
        since = datetime.now(UTC)
        self._start_runtime(found)
        self._start_kubelet(found)
        self._wait_ready(found, since)

    def freeze_node(self, node: str) -> None:
        """Stop every process of a node without a signal that it could handle, as on a hung machine."""
        cgroups.set_frozen(self._find(node).name, frozen=True)

    def thaw_node(self, node: str) -> None:
        """Undo `freeze_node`."""
        cgroups.set_frozen(self._find(node).name, frozen=False)

    def partition_node(self, node: str) -> None:
        """Drop all packets between a node and the rest; its processes keep running."""
        network.partition(self._find(node).octet)

    def heal_node(self, node: str) -> None:
        """Undo `partition_node`."""
        network.heal(self._find(node).octet)

    def pod_processes(self, node: str, pod_uid: str, program: str) -> list[Process]:
        """Return the processes of a pod whose command line contains `program`."""
        pids = [pid for pid in cgroups.members(self._find(node).name, pod_uid) if program in command_line(pid)]
        return [Process(pid, start, boot_id()) for pid in pids if (start := start_time(pid))]

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Kill the API server while the context lasts; the nodes' processes keep running."""
        control_plane.MACHINE.stop("kube-apiserver")
        try:
            yield
        finally:
            control_plane.start(self.topology())

    def read_requests(self, since: datetime) -> list[audit.Event]:
        """Return the API requests of the operator's namespace since a time, oldest first."""
        return audit.read(since)

    def gather_logs(self, folder: Path) -> None:
        """Copy daemons' logs, pods' logs, events and objects into a folder."""
        gather_objects(self.kubectl, folder)
        if LOGS.exists():
            shutil.copytree(LOGS, folder / "daemons", dirs_exist_ok=True)
        for logs in NODES.glob("*/pod-logs"):
            shutil.copytree(logs, folder / "pods" / logs.parent.name, dirs_exist_ok=True)

    def status(self) -> list[tuple[str, str]]:
        """Return the state of each machine: on, off, frozen, cut off, or its ended daemons."""
        return [(machine_node.name, self._state(machine_node)) for machine_node in self.topology().nodes()]

    def _start_from_scratch(self, built: list[images.Image]) -> None:
        """Start from scratch: a missing switch means a first start, a reboot, or a broken cluster."""
        _kill_machines()
        _empty_state()
        shutil.rmtree(LOGS, ignore_errors=True)
        print_progress("preparing images for the nodes")
        image_store.ensure_seed(built)
        topology = self._requested_topology or Topology()
        TOPOLOGY.write_text(json.dumps(topology.to_json()))
        network.SWITCH.boot()
        network.connect_host(topology.nodes())

    def _choose_topology(self) -> Topology:
        running = self.topology()
        if self._requested_topology not in (None, running):
            raise ClusterError(
                f"the cluster has {running}, not {self._requested_topology}; `python -m e2e.cluster down` it first"
            )
        return running

    def _start(self, nodes: list[Node], built: list[images.Image]) -> None:
        print_progress(f"starting the control plane and {len(nodes)} nodes")
        control_plane.write_credentials()
        image_store.record_images(built)
        self._undo_drills(nodes)
        # A restarted node shows its stale Ready condition for a while.
        since = datetime.now(UTC)
        restarted = [machine_node for machine_node in nodes if not Machine(machine_node.name).is_running("kubelet")]
        start_control_plane = partial(control_plane.start, self.topology())
        _in_parallel([start_control_plane, *(partial(self._start_runtime, machine_node) for machine_node in nodes)])
        _in_parallel([partial(self._start_kubelet, machine_node) for machine_node in nodes])
        addons.ensure_addons()
        print_progress("waiting for nodes and add-ons")
        for machine_node in restarted:
            self._wait_ready(machine_node, since)
        addons.wait_for_addons()

    def _undo_drills(self, nodes: Iterable[Node]) -> None:
        for machine_node in nodes:
            if cgroups.is_frozen(machine_node.name):
                cgroups.set_frozen(machine_node.name, frozen=False)
            if Machine(machine_node.name).find_init() is not None and network.is_partitioned(machine_node.octet):
                network.heal(machine_node.octet)

    def _start_runtime(self, machine_node: Node) -> None:
        node.start_runtime(machine_node, self.topology().nodes())
        self._load_recorded_images(machine_node)

    def _start_kubelet(self, machine_node: Node) -> None:
        node.start_kubelet(machine_node)

    def _load_recorded_images(self, machine_node: Node) -> None:
        image_store.load(Machine(machine_node.name), node.node_root(machine_node.name), image_store.recorded_images())

    def _wait_ready(self, machine_node: Node, since: datetime) -> None:
        wait_until(
            lambda: self._is_ready(machine_node.name, since), f"node {machine_node.name} to be Ready", seconds=120
        )
        self._set_capacity(machine_node)

    def _is_ready(self, name: str, since: datetime) -> bool:
        """Return whether a node's kubelet has renewed its lease after `since` and reports the node as Ready.

        Each sign alone may be stale: Ready persists for 50 seconds after a failure, and its time has whole seconds.
        """
        lease = json.loads(self.kubectl("get", "lease", name, "--namespace=kube-node-lease", "--output=json"))
        if datetime.fromisoformat(lease["spec"]["renewTime"]) < since:
            return False
        conditions = json.loads(self.kubectl("get", "node", name, "--output=json"))["status"].get("conditions", [])
        return any(
            condition["type"] == "Ready"
            and condition["status"] == "True"
            and datetime.fromisoformat(condition["lastHeartbeatTime"]) >= since.replace(microsecond=0)
            for condition in conditions
        )

    def _set_capacity(self, machine_node: Node) -> None:
        """Report simulated accelerators; the kubelet keeps resources that it does not know."""
        if machine_node.num_tpus:
            patch = {"status": {"capacity": {TPU_RESOURCE: str(machine_node.num_tpus)}}}
            self.kubectl("patch", "node", machine_node.name, "--subresource=status", f"--patch={json.dumps(patch)}")

    def _find(self, name: str) -> Node:
        nodes = {machine_node.name: machine_node for machine_node in self.topology().nodes()}
        if name not in nodes:
            raise ClusterError(f"there is no node {name!r}; the nodes are {', '.join(nodes)}")
        return nodes[name]

    def _state(self, machine_node: Node) -> str:
        if Machine(machine_node.name).find_init() is None:
            return "off"
        down = [
            name for name in ("containerd", "kubelet", "kube-proxy") if not Machine(machine_node.name).is_running(name)
        ]
        facts = [f"{name} ended" for name in down]
        facts += ["frozen"] if cgroups.is_frozen(machine_node.name) else []
        facts += ["cut off"] if network.is_partitioned(machine_node.octet) else []
        return ", ".join(facts) or "on"


def _kill_machines() -> None:
    """Kill all machines that have a record, or only a control group."""
    names = set(recorded_machines()) | set(cgroups.nodes())
    _in_parallel([Machine(name).kill for name in names - {network.SWITCH.name}])
    network.SWITCH.kill()  # last: it holds the others' network links
    cgroups.remove_tree()


def _empty_state() -> None:
    STATE.mkdir(exist_ok=True)
    for path in STATE.iterdir():
        if path in KEPT_BY_DOWN:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _build_all() -> list[images.Image]:
    """Build all images and binaries. The project's images do not need Go's output, so both are built concurrently."""
    with ThreadPoolExecutor(1) as pool:
        project_images = pool.submit(images.build, images.project_recipes())
        ensure_binaries()
        return [*images.build(images.system_recipes()), *project_images.result()]


def _in_parallel(calls: Iterable[Callable[[], None]]) -> None:
    """Run calls, which mostly wait for other processes, in threads. Raise the first error after all have ended."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        running = [pool.submit(call) for call in calls]
    for future in running:
        future.result()
