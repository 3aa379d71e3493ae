"""The hardware table: every topology comes to the hosts, chips and labels that the provider documents."""

import pytest

from trainingjob_operator.core.hardware_builtin import BUILTIN
from trainingjob_operator.core.plan import SliceShape

# (accelerator, topology): hosts, chips a host, GiB a chip
SHAPES: dict[tuple[str, str], tuple[int, int, int]] = {
    ("cpu", "1x1"): (1, 1, 0),
    ("cpu", "2x2"): (2, 2, 0),
    ("cpu", "256x64"): (256, 64, 0),
    ("tpu-v4", "2x2x1"): (1, 4, 32),
    ("tpu-v4", "8x16x16"): (512, 4, 32),
    ("tpu-v5e", "1x1"): (1, 1, 16),
    ("tpu-v5e", "2x2"): (1, 4, 16),
    ("tpu-v5e", "2x4"): (1, 8, 16),
    ("tpu-v5e", "4x4"): (4, 4, 16),
    ("tpu-v5e", "16x16"): (64, 4, 16),
    ("tpu-v5p", "2x2x4"): (4, 4, 95),
    ("tpu-v5p", "4x4x4"): (16, 4, 95),
    ("tpu-v5p", "4x4x12"): (48, 4, 95),
    ("tpu-v5p", "16x16x24"): (1536, 4, 95),
    ("tpu-v6e", "2x4"): (1, 8, 32),
    ("tpu-v6e", "8x16"): (32, 4, 32),
}
NONE: dict[str, tuple[str, str]] = {
    "an accelerator that is not in the table": ("tpu-v2", "2x2"),
    "cpu with one dim": ("cpu", "4"),
    "cpu with a zero": ("cpu", "0x2"),
    "cpu with too many hosts": ("cpu", "257x1"),
    "a 2D topology of a 3D accelerator": ("tpu-v5p", "4x4"),
    "a 3D topology of a 2D accelerator": ("tpu-v5e", "2x2x1"),
    "dims that descend": ("tpu-v5p", "8x4x4"),
    "dims that are no multiple of a cube": ("tpu-v5p", "4x4x6"),
    "more chips than the largest slice": ("tpu-v5p", "16x16x28"),
    "a larger slice than a 2D accelerator has": ("tpu-v6e", "16x32"),
}


@pytest.mark.parametrize(("wanted", "have"), SHAPES.items(), ids=[" ".join(wanted) for wanted in SHAPES])
def test_a_slice_has_its_hosts_and_memory(wanted: tuple[str, str], have: tuple[int, int, int]) -> None:
    shape = BUILTIN.find_shape(*wanted)

    assert shape
    assert (shape.num_hosts, shape.devices_per_host, shape.memory_bytes / 2**30) == have


@pytest.mark.parametrize(("accelerator", "topology"), NONE.values(), ids=NONE.keys())
def test_there_is_no_such_slice(accelerator: str, topology: str) -> None:
    assert BUILTIN.find_shape(accelerator, topology) is None


def test_a_tpu_slice_is_found_by_its_node_labels_and_placed_on_one_node_pool() -> None:
    assert BUILTIN.find_shape("tpu-v6e", "4x4") == SliceShape(
        accelerator="tpu-v6e",
        platform="tpu",
        topology="4x4",
        num_hosts=4,
        devices_per_host=4,
        resource="google.com/tpu",
        node_labels=(
            ("cloud.google.com/gke-tpu-accelerator", "tpu-v6e-slice"),
            ("cloud.google.com/gke-tpu-topology", "4x4"),
        ),
        exclusive_topology="cloud.google.com/gke-nodepool",
        memory_bytes=32 * 2**30,
    )


def test_a_cpu_slice_goes_anywhere() -> None:
    shape = BUILTIN.find_shape("cpu", "2x4")

    assert shape == SliceShape("cpu", "cpu", "2x4", 2, 4, "", (), "", 0)
    assert shape.num_devices == 8


@pytest.mark.parametrize("accelerator", ["cpu", "tpu-v4"])
def test_a_job_may_name_its_own_exclusive_topology(accelerator: str) -> None:
    shape = BUILTIN.find_shape(accelerator, "2x2x1" if accelerator != "cpu" else "1x1", "example.com/rack")

    assert shape
    assert shape.exclusive_topology == "example.com/rack"


NEAREST: dict[str, tuple[str, str, list[str]]] = {
    "one chip too many in a row": ("tpu-v5p", "4x4x5", ["4x4x4 (64 chips)", "4x4x8 (128 chips)"]),
    "the right chips in another order": ("tpu-v4", "8x4x4", ["4x4x8 (128 chips)", "4x4x12 (192 chips)"]),
    "one dim for two": ("tpu-v5e", "16", ["4x4 (16 chips)", "4x8 (32 chips)"]),
    "nothing at all": ("tpu-v5e", "0x0", ["1x1 (1 chip)", "2x2 (4 chips)"]),
    "cpu without devices": ("cpu", "3", ["3x1"]),
    "cpu above its limits": ("cpu", "1000x0", ["256x1"]),
}


@pytest.mark.parametrize(("accelerator", "topology", "want"), NEAREST.values(), ids=NEAREST.keys())
def test_the_nearest_topologies_are_told(accelerator: str, topology: str, want: list[str]) -> None:
    assert BUILTIN.nearest_topologies(accelerator, topology) == want


def test_larger_topologies_begin_with_the_fewest_chips() -> None:
    small, cpu = BUILTIN.find_shape("tpu-v5e", "4x8"), BUILTIN.find_shape("cpu", "2x2")

    assert small
    assert cpu
    assert BUILTIN.larger_topologies(small) == ["8x8", "8x16", "16x16"]
    assert BUILTIN.larger_topologies(cpu) == []


@pytest.mark.parametrize("accelerator", [name for name in BUILTIN.names if name != "cpu"])
def test_every_topology_of_the_table_is_whole_hosts(accelerator: str) -> None:
    smallest = BUILTIN.find_shape(accelerator, BUILTIN.nearest_topologies(accelerator, "1x1", count=1)[0].split()[0])
    assert smallest
    for topology in BUILTIN.larger_topologies(smallest):
        shape = BUILTIN.find_shape(accelerator, topology)
        assert shape
        assert shape.num_hosts * shape.devices_per_host == shape.num_devices
        assert shape.topology == topology
