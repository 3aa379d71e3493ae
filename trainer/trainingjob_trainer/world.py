"""Joining a JAX world exactly as the operator formed it, and speaking with its other processes outside of programs.

Nothing is detected: cluster detection would probe Kubernetes, and the preemption service would swallow SIGTERM. A
process dials only once the coordinator listens, because the connection's own retry costs a second. The coordination
service then carries what must not be a collective: a collective whose peers are late by 30 s is an error.
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
from jax._src import distributed  # the coordination service's client has no public name
from jax.errors import JaxRuntimeError

from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Layout, World
from trainingjob_trainer.devices import check_devices, make_devices
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.surroundings import change, derive

LOG = logging.getLogger(__name__)
CONNECT_SECONDS = 300
HEARTBEAT_SECONDS = 30
SHUTDOWN_SECONDS = 5
PORT_POLL_SECONDS = 0.02
TRANSPORT_NICE = 10
"""The weight of a tenth beside a thread of the usual priority."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the pod's own


class Peers:
    """The processes of this world, seen from one of them. `client` is None in a world of one.

    `tell` hears of each meeting before this process waits for the others there.

    A process has two numbers. By the world's, `process`, the operator knows its host, and processes meet. By the
    runtime's, its index, devices name their process, and so does JAX itself (`jax.process_index`), and Orbax. On CPUs
    and GPUs the runtime takes the number that JAX is given, so that the two are equal. On TPUs the index follows from
    where the chips lie in the slice, whatever JAX is given and TPU_WORKER_ID says (SkyRL, pull request 1252, of
    a v6e slice of 4x4; Orbax has such a map too, `multihost.py`, `initialize_runtime_to_distributed_ids`). Whoever
    takes the one for the other names another host. No TPU has run this: what has is worlds of CPUs whose runtime was
    given other numbers than JAX. That the indices of a world of several TPU slices are 0 to n - 1 is taken for granted.
    """

    def __init__(
        self,
        process: int,
        num_processes: int,
        client: distributed.State | None = None,
        tell: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.process = process
        self.num_processes = num_processes
        self._client = client.client if client else None
        self._tell = tell
        self._indices = tuple(range(num_processes))

    def learn_indices(self, index: int, seconds: float) -> None:
        """Learn the runtime's index of every process, of which `index` is this one's. All processes do so together.

        Raises:
            JaxRuntimeError: one of them did not speak within `seconds`.
        """
        self._indices = tuple(int(text) for text in self.exchange("indices", str(index), seconds))

    def index(self, process: int) -> int:
        """Return the runtime's index of a process of the world."""
        return self._indices[process]

    def owner(self, device: jax.Device) -> int:
        """Return the process of the world that a device belongs to."""
        return self._indices.index(device.process_index)

    def quietly(self) -> "Peers":
        """Return the same process for meetings beside training that may take long: nobody is held to be late there."""
        quiet = copy(self)
        quiet._tell = lambda name: None  # noqa: SLF001  # its own copy
        return quiet

    def wait(self, name: str, seconds: float) -> None:
        """Wait until every process waits for the same name. A name serves once.

        Raises:
            JaxRuntimeError: they did not all come within `seconds`.
        """
        if self._client:
            self._tell(f"the barrier `{name}`")
            self._client.wait_at_barrier(f"trainingjob/{name}", int(seconds * 1000))

    def exchange(self, name: str, text: str, seconds: float) -> tuple[str, ...]:
        """Return what every process said under a name, in process order. A name serves once.

        Raises:
            JaxRuntimeError: one of them did not speak within `seconds`.
        """
        if not self._client:
            return (text,)
        keys = [f"trainingjob/{name}/{process}" for process in range(self.num_processes)]
        self._tell(f"the exchange `{name}`")
        self._client.key_value_set(keys[self.process], text)
        texts = tuple(self._client.blocking_key_value_get(key, int(seconds * 1000)) for key in keys)
        self.wait(f"{name}/read", seconds)
        self._client.key_value_delete(keys[self.process])
        return texts

    def part(self, seconds: float) -> None:
        """Wait for all to be through, so that no exit looks like a death to the others. Who does not come is gone."""
        try:
            self.wait("part", seconds)
        except JaxRuntimeError as error:
            LOG.warning("left without the others error=%s", error)


def configure(platform: str, layout: Layout, world: World | None = None, process: int = 0) -> None:
    """Set what JAX must know before it touches a device, and touch none. Without a world: to compile only."""
    change(os.environ, derive(platform, layout, os.environ, world, process))
    jax.config.update("jax_platforms", platform)
    jax.config.update("jax_enable_preemption_service", False)  # noqa: FBT003  # JAX's own signature
    jax.config.update("jax_check_proxy_envs", False)  # noqa: FBT003  # peers are never behind a proxy
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", layout.devices_per_host)
        if layout.num_hosts > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if platform == "cuda":
        _sweep(SHARED_MEMORY)


def _sweep(folder: Path) -> None:
    """Delete what NCCL left of a killed child: the folder outlives it, and would be full after some restarts.

    Only one child of a pod has the devices at a time, so nothing of it is in use.
    """
    for path in folder.glob("nccl-*"):
        path.unlink(missing_ok=True)


def connect(
    world: World, process: int, layout: Layout, platform: str, tell: Callable[[str], None] = lambda name: None
) -> Peers:
    """Join the world as a process and check that it has the devices of the layout; `tell` as for `Peers`.

    To be called after `configure` for the same process of the same world.

    Raises:
        TrainingError: the coordinator never listened, or the devices are not those of the layout.
    """
    if layout.num_hosts == 1:
        peers = Peers(0, 1)
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
        peers = Peers(process, layout.num_hosts, distributed.global_state, tell)
    before = list_threads()
    make_devices(platform)  # and the threads that serve them
    if platform == "cpu" and layout.num_hosts > 1:
        let_transport_give_way(before)
    peers.learn_indices(jax.process_index(), CONNECT_SECONDS)
    check_devices(world, process, layout, peers.index)
    return peers


def let_transport_give_way(before: Collection[int]) -> None:
    """Let gloo's own thread run after all others of this host: the first since `before` that got no name.

    It reads all connections. Where another thread holds the lock of one that has news, it asks for news again at once,
    and again, as long as that lasts (gloo, `transport/tcp/pair.cc`, `handleEvents`). Where hosts share few cores that
    takes from the other thread what it needs to be done: a third of two cores was lost so, with four hosts.
    """
    nameless = Path("/proc/self/comm").read_text()
    came = sorted(thread for thread, name in list_threads().items() if thread not in before and name == nameless)
    for thread in came[:1]:
        with suppress(OSError):  # the kernel refuses it, or the thread has ended
            os.setpriority(os.PRIO_PROCESS, thread, TRANSPORT_NICE)


def list_threads() -> dict[int, str]:
    """Return the names of this process's threads as the kernel knows them; one that got none has the process's."""
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
