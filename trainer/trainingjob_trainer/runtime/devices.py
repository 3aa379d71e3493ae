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
    everyone, asked = jax.devices(), layout.devices_per_host
    found = Counter(device.process_index for device in everyone)
    known = [index(host) for host in range(layout.num_hosts)]
    by_process = [found[one] for one in known]
    here = by_process[process]
    lacking = [host for host, number in enumerate(by_process) if number < asked]
    is_alike = len(set(by_process)) == 1
    is_larger = any(number > asked for number in by_process) or not found.keys() <= set(known)
    if is_larger or (lacking and is_alike and not world.lineage):
        raise TrainingError(
            FailureReason.CONFIG,
            f"expected {asked} devices on this host and {layout.num_devices} in the world of "
            f"{layout.num_slices} slices, found {here} and {len(everyone)} ({everyone[0].device_kind}). "
            "The topology must be that of the nodes that the pods run on.",
            path="spec.slices.topology",
        )
    if process in lacking:
        message = (
            f"this host has {here} of {asked} devices ({everyone[0].device_kind}), and other hosts have all of theirs "
            "or it had them before: the rest does not answer. If it lasts, take the node out of service."
        )
        raise TrainingError(FailureReason.ACCELERATOR, message, fatal=False)
    if lacking:
        words = f"process {lacking[0]} has {by_process[lacking[0]]} of {asked} devices."
        raise TrainingError(FailureReason.PEER, f"another host of the world lacks devices: {words}", fatal=False)


def _lacks_plugin(error: Exception) -> bool:
    """Return whether JAX cannot use a platform at all; it has no exception type for that."""
    return isinstance(error, AssertionError) or "Failed to open libtpu" in str(error)
