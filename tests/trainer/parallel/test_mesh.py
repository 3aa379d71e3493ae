"""The mesh: DCN outside, ICI inside, for each axis."""

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src import mesh_utils  # what it assigns is told by no public function
from jax.sharding import AxisType

from tests.support.trainer.tiny import make_layout
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.torus import assign_dims
from trainingjob_trainer.parallel.mesh import build_mesh

CASES: dict[str, tuple[Layout, list[list[list[int]]]]] = {
    "one slice": (
        make_layout(devices_per_host=8, ici=AxisDegrees(data=2, fsdp=2, tensor=2)),
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
    ),
    "data over slices": (
        make_layout(num_slices=2, devices_per_host=4, ici=AxisDegrees(fsdp=4), dcn=AxisDegrees(data=2)),
        [[[0], [1], [2], [3]], [[4], [5], [6], [7]]],
    ),
    "data over slices and inside them": (
        make_layout(num_slices=2, devices_per_host=4, ici=AxisDegrees(data=2, fsdp=2), dcn=AxisDegrees(data=2)),
        [[[0], [1]], [[2], [3]], [[4], [5]], [[6], [7]]],
    ),
    "fsdp over slices and inside them": (
        make_layout(num_slices=2, devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2), dcn=AxisDegrees(fsdp=2)),
        [[[0, 1], [2, 3], [4, 5], [6, 7]]],
    ),
}


@pytest.mark.parametrize(("layout", "want"), CASES.values(), ids=CASES.keys())
def test_orders_devices(layout: Layout, want: list[list[list[int]]]) -> None:
    mesh = build_mesh(jax.devices()[::-1], layout)

    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    assert (
        ids.squeeze(axis=tuple(mesh.axis_names.index(axis) for axis in ("stage", "expert", "context"))).tolist() == want
    )
    assert mesh.axis_names == ("data", "stage", "fsdp", "expert", "context", "tensor")
    assert mesh.axis_types == (AxisType.Auto,) * 6


class Chip(SimpleNamespace):
    """A device of a TPU, with the coordinates that the mesh reads."""

    platform = "tpu"
    device_kind = "TPU v5 lite"
    core_on_chip = 0
    __hash__ = object.__hash__


def test_slices_of_a_tpu_are_found_by_their_devices_whatever_the_runtime_calls_its_processes() -> None:
    layout = make_layout(
        num_slices=2, hosts_per_slice=2, devices_per_host=4, ici=AxisDegrees(fsdp=8), dcn=AxisDegrees(data=2)
    )

    def lay(indices: Sequence[int]) -> list[int]:
        chips: list[Any] = [
            Chip(
                id=8 * part + 4 * host + place,
                slice_index=part,
                process_index=indices[2 * part + host],
                coords=(place % 2, 2 * host + place // 2, 0),
            )
            for part, host, place in itertools.product(range(2), range(2), range(4))
        ]
        return [chip.id for chip in build_mesh(chips, layout).devices.flat]

    orders = {tuple(lay(indices)) for indices in itertools.permutations(range(4))}

    assert orders == {(0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12)}


def test_contexts_lie_inside_stages_and_these_inside_data() -> None:
    layout = make_layout(devices_per_host=8, ici=AxisDegrees(data=2, stage=2, context=2))
    mesh = build_mesh(jax.devices(), layout)

    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    assert ids[:, :, 0, 0, :, 0].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_experts_lie_inside_fsdp_and_around_contexts() -> None:
    layout = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=2, expert=2, context=2))
    mesh = build_mesh(jax.devices(), layout)

    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    assert ids[0, 0, :, :, :, 0].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_another_number_of_devices_is_rejected() -> None:
    with pytest.raises(ValueError, match="the layout has 2 devices, not 8"):
        build_mesh(jax.devices(), make_layout())


@st.composite
def meshes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    """Return dims of a torus, and degrees that multiply to its devices."""
    dims = draw(st.lists(st.sampled_from([2, 4, 6, 8, 12, 16]), min_size=2, max_size=3))
    left, degrees = math.prod(dims), []
    for _ in range(draw(st.integers(0, 3))):
        degrees.append(draw(st.sampled_from([part for part in range(1, left + 1) if left % part == 0])))
        left //= degrees[-1]
    return tuple(dims), [degree for degree in (*degrees, left) if degree > 1]


@given(meshes())
@settings(max_examples=150, deadline=None)
def test_plan_has_the_axis_order_of_jax(mesh: tuple[tuple[int, ...], list[int]]) -> None:
    dims, degrees = mesh
    devices = np.full(dims, SimpleNamespace(device_kind="any"))
    _, matrix = mesh_utils._create_device_mesh_for_nd_torus(devices, degrees, allow_split_physical_axes=True)

    assert assign_dims(dims, degrees) == tuple(tuple(column) for column in matrix.T.tolist())


@pytest.mark.parametrize("degrees", [[64, 2], [16, 8], [32, 4], [4, 4, 8], [128], [2, 64]])
def test_plan_has_the_axis_order_of_jax_for_double_chips(degrees: list[int]) -> None:
    devices = np.full((4, 4, 4, 2), SimpleNamespace(device_kind="TPU7x"))
    _, matrix = mesh_utils._create_device_mesh_for_nd_torus(devices, degrees, allow_split_physical_axes=True)

    assert assign_dims((4, 4, 4, 2), degrees, fast=3) == tuple(tuple(column) for column in matrix.T.tolist())
