"""The mesh over the devices of a world: for each axis, DCN degrees outside and ICI degrees inside.

One function builds every mesh, from the world's own slice map. JAX's hybrid mesh asks the devices for their slice,
which CPU devices do not know, and its two ways to make a mesh differ in their axis types.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from trainingjob_api.base import AXES
from trainingjob_api.world import Layout


def build_mesh(devices: Sequence[jax.Device], layout: Layout) -> Mesh:
    """Return the mesh of a layout over all devices of its world.

    Raises:
        ValueError: there are not as many devices as the layout has.
    """
    ici = [degree for _, degree in layout.ici.items()]
    dcn = [degree for _, degree in layout.dcn.items()]
    if len(devices) != layout.num_devices:
        raise ValueError(f"the layout has {layout.num_devices} devices, not {len(devices)}")
    # Processes are numbered slice by slice. On a TPU the runtime numbers them in its own way, but there the devices
    # know their slice, and JAX lays those of a slice by their coordinates.
    ordered = sorted(devices, key=lambda device: (_slice_of(device), device.process_index, device.id))
    size = len(ordered) // layout.num_slices
    slices = [
        mesh_utils.create_device_mesh(ici, ordered[first : first + size], allow_split_physical_axes=True)
        for first in range(0, len(ordered), size)
    ]
    outer_first = np.stack(slices).reshape(*dcn, *ici)
    interleaved = outer_first.transpose([place + inner for place in range(len(AXES)) for inner in (0, len(AXES))])
    shape = [outer * inner for outer, inner in zip(dcn, ici, strict=True)]
    return Mesh(interleaved.reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _slice_of(device: jax.Device) -> int:
    return getattr(device, "slice_index", 0) if device.platform == "tpu" else 0
