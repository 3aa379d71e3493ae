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
        ValueError: the slices are not equal in size.
    """
    ici = [degree for _, degree in layout.ici.items()]
    dcn = [degree for _, degree in layout.dcn.items()]
    slices = [
        mesh_utils.create_device_mesh(ici, members, allow_split_physical_axes=True)
        for members in _split_slices(devices, layout)
    ]
    outer_first = np.stack(slices).reshape(*dcn, *ici)
    interleaved = outer_first.transpose([place + inner for place in range(len(AXES)) for inner in (0, len(AXES))])
    shape = [outer * inner for outer, inner in zip(dcn, ici, strict=True)]
    return Mesh(interleaved.reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _split_slices(devices: Sequence[jax.Device], layout: Layout) -> list[list[jax.Device]]:
    """Return the devices of each slice. Process ids are dense, slice by slice; TPU devices know their own slice."""
    slices: list[list[jax.Device]] = [[] for _ in range(layout.num_slices)]
    for device in sorted(devices, key=lambda device: (device.process_index, device.id)):
        if device.platform == "tpu" and layout.num_slices > 1:
            place = device.slice_index
        else:
            place = device.process_index // layout.hosts_per_slice
        slices[place].append(device)
    if len({len(members) for members in slices}) != 1:
        raise ValueError(f"slices of unequal size: {[len(members) for members in slices]} devices")
    return slices
