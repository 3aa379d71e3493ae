"""Joining a JAX world exactly as the operator formed it, and communication between its processes outside of programs.

Nothing is detected: cluster detection would query Kubernetes, and the preemption service would intercept SIGTERM. A
process connects only once the coordinator listens, because the connection's own retry costs a second. The coordination
service carries everything that must not be a collective: a collective fails if a peer is 30 s late.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from pathlib import Path

import jax
from jax._src import distributed  # the client of the coordination service has no public name
from jax.errors import JaxRuntimeError

from trainingjob_agent.world_environment import apply_changes, environment_changes
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Layout, World
from trainingjob_trainer.runtime.devices import check_devices, initialize_devices
from trainingjob_trainer.runtime.errors import TrainingError

LOG = logging.getLogger(__name__)
CONNECT_SECONDS = 300
HEARTBEAT_SECONDS = 30
SHUTDOWN_SECONDS = 5
PORT_POLL_SECONDS = 0.02
GLOO_NICE = 10
"""Nice value with a tenth of the weight of a thread of the usual priority."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # private to the pod


class ProcessGroup:
    """The processes of this world, seen from one of them. `client` is None in a world of one process.

    `report_entry` is called with the name of each barrier or exchange before this process waits for the others there.

    A process has two numbers. The world's number, `process`, identifies its host for the operator and is used in
    barriers and exchanges. The runtime's number, the index, is how devices name their process, as do JAX itself
    (`jax.process_index`) and Orbax. On CPUs and GPUs the runtime takes the number that JAX is given, so that the two
    are equal. On TPUs the index follows from where the chips lie in the slice, regardless of JAX's arguments and
    TPU_WORKER_ID (SkyRL, pull request 1252, of a v6e slice of 4x4). Orbax has such a map too (`multihost.py`,
    `initialize_runtime_to_distributed_ids`). Code that confuses the two names another host. No TPU has run this code;
    it was tested in worlds of CPUs whose runtime was given other numbers than JAX. The code assumes that the indices of
    a world of several TPU slices are 0 to n - 1.
    """

    def __init__(
        self,
        process: int,
        num_processes: int,
        client: distributed.State | None = None,
        report_entry: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.process = process
        self.num_processes = num_processes
        self._client = client.client if client else None
        self._report_entry = report_entry
        self._indices = tuple(range(num_processes))

    def exchange_runtime_indices(self, index: int, seconds: float) -> None:
        """Exchange the runtime's index of every process; `index` is this one's. All processes call it together.

        Raises:
            JaxRuntimeError: a process did not answer within `seconds`.
        """
        self._indices = tuple(int(text) for text in self.exchange("indices", str(index), seconds))

    def runtime_index(self, process: int) -> int:
        """Return the runtime's index of a process of the world."""
        return self._indices[process]

    def process_of(self, device: jax.Device) -> int:
        """Return the process of the world that a device belongs to."""
        return self._indices.index(device.process_index)

    def without_reports(self) -> "ProcessGroup":
        """Return the same process for long barriers beside training, which it does not report to the agent."""
        quiet = copy(self)
        quiet._report_entry = lambda name: None  # noqa: SLF001  # a private copy
        return quiet

    def barrier(self, name: str, seconds: float) -> None:
        """Wait until every process waits at the barrier of this name. A name can be used once.

        Raises:
            JaxRuntimeError: not all processes arrived within `seconds`.
        """
        if self._client:
            self._report_entry(f"the barrier `{name}`")
            self._client.wait_at_barrier(f"trainingjob/{name}", int(seconds * 1000))

    def exchange(self, name: str, text: str, seconds: float) -> tuple[str, ...]:
        """Return the text of every process under a name, in process order. A name can be used once.

        Raises:
            JaxRuntimeError: a process did not answer within `seconds`.
        """
        if not self._client:
            return (text,)
        keys = [f"trainingjob/{name}/{process}" for process in range(self.num_processes)]
        self._report_entry(f"the exchange `{name}`")
        self._client.key_value_set(keys[self.process], text)
        texts = tuple(self._client.blocking_key_value_get(key, int(seconds * 1000)) for key in keys)
        self.barrier(f"{name}/read", seconds)
        self._client.key_value_delete(keys[self.process])
        return texts

    def exit_barrier(self, seconds: float) -> None:
        """Wait for all processes before the exit, so that none looks like a crash to the others.

        Processes that do not arrive are ignored.
        """
        try:
            self.barrier("part", seconds)
        except JaxRuntimeError as error:
            LOG.warning("left without the others error=%s", error)


def configure(platform: str, layout: Layout, world: World | None = None, process: int = 0) -> None:
    """Set JAX's configuration before it touches a device. Without a world, configure for compilation only."""
    apply_changes(os.environ, environment_changes(platform, layout, os.environ, world, process))
    jax.config.update("jax_platforms", platform)
    jax.config.update("jax_enable_preemption_service", False)  # noqa: FBT003  # JAX's own signature
    jax.config.update("jax_check_proxy_envs", False)  # noqa: FBT003  # peers are never behind a proxy
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", layout.devices_per_host)
        if layout.num_hosts > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if platform == "cuda":
        _delete_nccl_files(SHARED_MEMORY)


def _delete_nccl_files(folder: Path) -> None:
    """Delete the shared memory of NCCL in a killed child: the folder outlives it and would fill up.

    Only one child of a pod uses the devices at a time, so that none of these files is in use.
    """
    for path in folder.glob("nccl-*"):
        path.unlink(missing_ok=True)


def connect(
    world: World, process: int, layout: Layout, platform: str, report_entry: Callable[[str], None] = lambda name: None
) -> ProcessGroup:
    """Join the world as a process and check its devices against the layout; `report_entry` as for `ProcessGroup`.

    Call it after `configure` for the same process of the same world.

    Raises:
        TrainingError: the coordinator never listened, or the devices are not those of the layout.
    """
    if layout.num_hosts == 1:
        peers = ProcessGroup(0, 1)
    else:
        if process != 0:
            _wait_for_port(world.coordinator)
        jax.distributed.initialize(
            coordinator_address=world.coordinator,
            coordinator_bind_address=world.coordinator,
            num_processes=layout.num_hosts,
            process_id=process,
            cluster_detection_method="deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
        peers = ProcessGroup(process, layout.num_hosts, distributed.global_state, report_entry)
    before = list_threads()
    initialize_devices(platform)  # starts their threads too
    if platform == "cpu" and layout.num_hosts > 1:
        lower_gloo_priority(before)
    peers.exchange_runtime_indices(jax.process_index(), CONNECT_SECONDS)
    check_devices(world, process, layout, peers.runtime_index)
    return peers


def lower_gloo_priority(before: Collection[int]) -> None:
    """Lower the priority of gloo's own thread: the first unnamed thread that started since `before`.

    That thread reads all connections. While another thread holds the lock of a connection with data, it polls without a
    pause (gloo, `transport/tcp/pair.cc`, `handleEvents`). Where hosts share few cores, this takes CPU time from the
    thread that holds the lock: with four hosts, a third of two cores was lost.
    """
    nameless = Path("/proc/self/comm").read_text()
    new_threads = sorted(thread for thread, name in list_threads().items() if thread not in before and name == nameless)
    for thread in new_threads[:1]:
        with suppress(OSError):  # the kernel rejects it, or the thread has ended
            os.setpriority(os.PRIO_PROCESS, thread, GLOO_NICE)


def list_threads() -> dict[int, str]:
    """Return the names of this process's threads in the kernel; an unnamed thread has the name of the process."""
    names = {}
    for path in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            names[int(path.name)] = (path / "comm").read_text()
    return names


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _wait_for_port(address: str) -> None:
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            socket.create_connection(_split_address(address), timeout=1).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise TrainingError(
                    FailureReason.PEER,
                    f"the coordinator {address} did not listen for {CONNECT_SECONDS} s: {error}. Can pods of this "
                    "namespace reach each other on every port?",
                    fatal=False,
                ) from error
            time.sleep(PORT_POLL_SECONDS)
        else:
            return
