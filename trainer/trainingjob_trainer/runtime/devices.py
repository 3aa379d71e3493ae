"""Device check: each host of a world must have the devices that the layout needs.

A topology that differs from the nodes' own is an error in the spec, which no other world fixes. Every host then has the
same wrong number of devices from the first world on, or there are more devices than the spec names. A host with fewer
devices than the others, or than in an earlier world, has lost a device: a GPU that fell off its bus, a chip that did
not start. That is a fault of the node.
"""

from collections import Counter
from collections.abc import Callable

import jax

from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Layout, World
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.image_check import image_error


def initialize_devices(platform: str) -> None:
    """Initialize JAX's devices, together with all processes of the world.

    Raises:
        TrainingError: the image's JAX cannot use the platform.
    """
    try:
        jax.local_device_count()
    except (AssertionError, RuntimeError) as error:
        if platform == "cpu" or not _lacks_plugin(error):
            raise
        raise image_error(platform, str(error) or "its plugin did not load") from error


def check_devices(world: World, process: int, layout: Layout, index: Callable[[int], int]) -> None:
    """Check that each host of a world has the devices of the layout; each process calls it.

    `index` maps a process of the world to the runtime's index, by which devices name their process.

    Raises:
        TrainingError: the topology is wrong, or a host lacks devices.
    """
    devices, expected = jax.devices(), layout.devices_per_host
    counts = Counter(device.process_index for device in devices)
    indices = [index(host) for host in range(layout.num_hosts)]
    by_process = [counts[runtime_index] for runtime_index in indices]
    num_local = by_process[process]
    incomplete = [host for host, number in enumerate(by_process) if number < expected]
    is_alike = len(set(by_process)) == 1
    is_larger = any(number > expected for number in by_process) or not counts.keys() <= set(indices)
    if is_larger or (incomplete and is_alike and not world.lineage):
        raise TrainingError(
            FailureReason.CONFIG,
            f"expected {expected} devices on this host and {layout.num_devices} in the world of "
            f"{layout.num_slices} slices, found {num_local} and {len(devices)} ({devices[0].device_kind}). "
            "The topology must be that of the nodes that the pods run on.",
            path="spec.slices.topology",
        )
    if process in incomplete:
        message = (
            f"this host has {num_local} of {expected} devices ({devices[0].device_kind}), and other hosts have all of "
            "theirs or it had them before: the rest does not answer. If it lasts, take the node out of service."
        )
        raise TrainingError(FailureReason.ACCELERATOR, message, fatal=False)
    if incomplete:
        detail = f"process {incomplete[0]} has {by_process[incomplete[0]]} of {expected} devices."
        raise TrainingError(FailureReason.PEER, f"another host of the world lacks devices: {detail}", fatal=False)


def _lacks_plugin(error: Exception) -> bool:
    """Return whether JAX cannot use a platform at all; it has no exception type for that."""
    return isinstance(error, AssertionError) or "Failed to open libtpu" in str(error)
