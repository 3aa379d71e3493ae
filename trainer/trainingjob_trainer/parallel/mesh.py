"""The mesh over the devices of a world: for each axis, the DCN size is the outer and the ICI size the inner factor.

One function builds every mesh, from the world's own slice map. JAX's hybrid mesh needs the slice of each device, which
CPU devices do not have. JAX's two functions that make a mesh differ in their axis types.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from trainingjob_api.base import AXES
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout


def build_mesh(devices: Sequence[jax.Device], layout: Layout) -> Mesh:
    """Return the mesh of a layout over all devices of its world.

    Raises:
        ValueError: the number of devices is not that of the layout.
    """
    ici = [degree for _, degree in layout.ici.items()]
    dcn = [degree for _, degree in layout.dcn.items()]
    if len(devices) != layout.num_devices:
        raise ValueError(f"the layout has {layout.num_devices} devices, not {len(devices)}")
    # Processes are numbered slice by slice. On a TPU the runtime has its own numbers, but the devices know their
    # slice there, and JAX places the devices of a slice by their coordinates.
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


def one_replica(num_devices: int, rows_per_device: int = 1) -> Layout:
    """Return a layout whose devices share the parameters, and each batch."""
    return Layout(
        num_slices=1,
        hosts_per_slice=1,
        devices_per_host=num_devices,
        ici=AxisDegrees(fsdp=num_devices),
        dcn=AxisDegrees(),
        rows_per_shard=rows_per_device,
        accumulation=1,
        padding_rows=0,
    )
