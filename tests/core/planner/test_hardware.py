"""The hardware table: every topology comes to the hosts, chips, labels and rates that the provider documents."""

import math

import pytest

from trainingjob_operator.core.planner.hardware import Accelerator, SliceTopology, parse_dims
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Rates, SliceShape

# (accelerator, topology): hosts, devices a host, GiB a device
SHAPES: dict[tuple[str, str], tuple[int, int, float]] = {
    ("tpu-v4", "2x2x1"): (1, 4, 32),
    ("tpu-v4", "2x4x4"): (8, 4, 32),
    ("tpu-v4", "16x16x16"): (1024, 4, 32),
    ("tpu-v5e", "1x1"): (1, 1, 16),
    ("tpu-v5e", "2x2"): (1, 4, 16),
    ("tpu-v5e", "2x4"): (1, 8, 16),
    ("tpu-v5e", "4x4"): (4, 4, 16),
    ("tpu-v5e", "16x16"): (64, 4, 16),
    ("tpu-v5p", "4x4x4"): (16, 4, 95),
    ("tpu-v5p", "4x4x12"): (48, 4, 95),
    ("tpu-v5p", "16x16x24"): (1536, 4, 95),
    ("tpu-v6e", "2x4"): (1, 8, 32),
    ("tpu-v6e", "8x16"): (32, 4, 32),
    ("tpu-v7x", "1x1x1"): (1, 2, 96),
    ("tpu-v7x", "2x2x1"): (1, 8, 96),
    ("tpu-v7x", "2x2x2"): (2, 8, 96),
    ("tpu-v7x", "4x4x4"): (16, 8, 96),
    ("tpu-v7x", "16x24x24"): (2304, 8, 96),
    ("nvidia-a100-40gb", "16"): (1, 16, 40),
    ("nvidia-a100-80gb", "8"): (1, 8, 80),
    ("nvidia-h100", "1"): (1, 1, 81559 / 1024),
    ("nvidia-h100-mega", "8"): (1, 8, 81559 / 1024),
    ("nvidia-h200", "8"): (1, 8, 143771 / 1024),
    ("nvidia-b200", "4"): (1, 4, 183359 / 1024),
    ("nvidia-gb200", "4"): (1, 4, 189471 / 1024),
    ("nvidia-gb200", "36"): (9, 4, 189471 / 1024),
    ("nvidia-gb200", "72"): (18, 4, 189471 / 1024),
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
    "a zero before a number, which no node's label has": ("tpu-v5p", "4x4x04"),
    "more chips than the largest slice": ("tpu-v5p", "16x16x28"),
    "a longer dim than any": ("tpu-v5p", "4x4x260"),
    "a larger slice than a 2D accelerator has": ("tpu-v6e", "16x32"),
    "a single chip of a generation that has no such machine": ("tpu-v5p", "1x1x1"),
    "half a cube more than the largest v7x": ("tpu-v7x", "16x24x28"),
    "more GPUs than a node has": ("nvidia-h100", "16"),
    "a number of GPUs that divides nothing": ("nvidia-h100", "3"),
}
ROWS = BUILTIN.accelerators_by_name.values()
TPUS = [row for row in ROWS if row.platform == "tpu"]
by_name = pytest.mark.parametrize("row", ROWS, ids=BUILTIN.accelerators_by_name)


@pytest.mark.parametrize(("wanted", "have"), SHAPES.items(), ids=[" ".join(wanted) for wanted in SHAPES])
def test_a_slice_has_its_hosts_and_memory(wanted: tuple[str, str], have: tuple[int, int, float]) -> None:
    shape = BUILTIN.find_shape(*wanted)

    assert shape
    assert (shape.num_hosts, shape.devices_per_host, shape.memory_bytes / 2**30) == have


@pytest.mark.parametrize(("accelerator", "topology"), NONE.values(), ids=NONE.keys())
def test_there_is_no_such_slice(accelerator: str, topology: str) -> None:
    assert BUILTIN.find_shape(accelerator, topology) is None


def test_a_tpu_slice_is_found_by_its_node_labels_and_placed_on_one_node_pool() -> None:
    shape = BUILTIN.find_shape("tpu-v6e", "4x4")

    assert shape == SliceShape(
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
        taints=("google.com/tpu",),
        torus=((4, False), (4, False)),
        rates=BUILTIN.accelerators_by_name["tpu-v6e"].rates,
        host_memory_bytes=4 * 176 * 10**9,
    )
    assert shape.device_noun == "chip"


def test_each_gpu_node_is_one_slice_found_by_the_name_of_its_gpu() -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")

    assert shape == SliceShape(
        accelerator="nvidia-h100",
        platform="cuda",
        topology="8",
        num_hosts=1,
        devices_per_host=8,
        resource="nvidia.com/gpu",
        node_labels=(("cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),),
        exclusive_topology="",
        memory_bytes=81559 * 2**20,
        taints=("nvidia.com/gpu",),
        rates=BUILTIN.accelerators_by_name["nvidia-h100"].rates,
        host_memory_bytes=8 * 234 * 10**9,
    )
    assert shape.device_noun == "GPU"


def test_a_rack_of_gb200_is_one_slice_of_arm_hosts() -> None:
    shape = BUILTIN.find_shape("nvidia-gb200", "72")

    assert shape
    assert shape.exclusive_topology == "cloud.google.com/gke-nodepool"
    assert shape.taints == ("nvidia.com/gpu", "kubernetes.io/arch")


def test_a_chip_of_tpu_v7x_is_two_devices() -> None:
    shape = BUILTIN.find_shape("tpu-v7x", "2x2x2")

    assert shape
    assert (shape.num_devices, shape.num_chips, shape.chips_per_host) == (16, 8, 4)
    assert shape.torus == ((2, False), (2, False), (2, False))
    assert shape.device_noun == "device"
    assert shape.node_labels[0] == ("cloud.google.com/gke-tpu-accelerator", "tpu7x")


def test_a_cpu_slice_goes_anywhere_and_is_never_judged() -> None:
    shape = BUILTIN.find_shape("cpu", "2x4")

    assert shape == SliceShape("cpu", "cpu", "2x4", 2, 4, "", (), "", 0)
    assert (shape.num_devices, shape.device_noun) == (8, "device")
    assert (shape.rates, shape.network_per_host) == (Rates(), 0)


@pytest.mark.parametrize("accelerator", ["cpu", "tpu-v4"])
def test_a_job_may_name_its_own_exclusive_topology(accelerator: str) -> None:
    shape = BUILTIN.find_shape(accelerator, "2x2x1" if accelerator != "cpu" else "1x1", "example.com/rack")

    assert shape
    assert shape.exclusive_topology == "example.com/rack"


def test_slices_of_one_host_share_a_node_pool() -> None:
    shape = BUILTIN.find_shape("tpu-v5e", "2x4")

    assert shape
    assert shape.exclusive_topology == ""


NEAREST: dict[str, tuple[str, str, list[str]]] = {
    "one chip too many in a row": ("tpu-v5p", "4x4x5", ["4x4x4 (64 chips)", "4x4x8 (128 chips)"]),
    "the right chips in another order": ("tpu-v4", "8x4x4", ["4x4x8 (128 chips)", "4x4x12 (192 chips)"]),
    "one dim for two": ("tpu-v5e", "16", ["4x4 (16 chips)", "4x8 (32 chips)"]),
    "nothing at all": ("tpu-v5e", "0x0", ["1x1 (1 chip)", "2x2 (4 chips)"]),
    "a node of sixteen GPUs": ("nvidia-h100", "16", ['"8" (8 GPUs)', '"4" (4 GPUs)']),
    "a node and its GPUs": ("nvidia-b200", "1x8", ['"8" (8 GPUs)', '"4" (4 GPUs)']),
    "cpu without devices": ("cpu", "3", ["3x1"]),
    "cpu above its limits": ("cpu", "1000x0", ["256x1"]),
}


@pytest.mark.parametrize(("accelerator", "topology", "want"), NEAREST.values(), ids=NEAREST.keys())
def test_message_lists_the_nearest_topologies(accelerator: str, topology: str, want: list[str]) -> None:
    assert BUILTIN.nearest_topologies(accelerator, topology) == want


def test_larger_topologies_begin_with_the_fewest_chips() -> None:
    small, cpu, two = (BUILTIN.find_shape(*one) for one in (("tpu-v5e", "4x8"), ("cpu", "2x2"), ("tpu-v7x", "2x2x2")))

    assert small
    assert cpu
    assert two
    assert BUILTIN.larger_topologies(small) == ["8x8", "8x16", "16x16"]
    assert BUILTIN.larger_topologies(cpu) == []
    assert BUILTIN.larger_topologies(two)[:5] == ["2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x4x12"]
    assert "4x4x16" not in BUILTIN.larger_topologies(two)  # 4x8x8 has as many chips, closer together


@by_name
def test_every_slice_has_whole_hosts_whose_chips_multiply_to_the_topology(row: Accelerator) -> None:
    for one in row.slices:
        shape = BUILTIN.find_shape(row.name, one.topology)
        assert shape
        assert shape.num_chips == math.prod(parse_dims(one.topology))
        assert shape.num_hosts * shape.devices_per_host == shape.num_devices == shape.num_chips * row.devices_per_chip
        assert shape.topology == one.topology
        assert not shape.torus or math.prod(chips for chips, _ in shape.torus) == shape.num_chips
    assert len({one.topology for one in row.slices}) == len(row.slices)


@by_name
def test_every_row_has_rates_and_their_source(row: Accelerator) -> None:
    rates = row.rates
    assert rates.bfloat16 > rates.memory > rates.link * rates.num_links > rates.network > 0
    assert rates.float32 > 0
    assert row.memory_bytes > 0
    assert row.source.startswith("https://")


NUM_SLICES = {"tpu-v4": 186, "tpu-v5e": 8, "tpu-v5p": 278, "tpu-v6e": 8, "tpu-v7x": 433}


@pytest.mark.parametrize("row", TPUS, ids=lambda row: row.name)
def test_a_tpu_has_all_of_its_topologies(row: Accelerator) -> None:
    assert len(row.slices) == NUM_SLICES[row.name]


RINGS: dict[tuple[str, str], tuple[bool, ...]] = {
    ("tpu-v5e", "8x8"): (False, False),
    ("tpu-v5e", "8x16"): (False, True),
    ("tpu-v6e", "16x16"): (True, True),
    ("tpu-v4", "2x4x4"): (False, False, False),
    ("tpu-v5p", "4x4x8"): (True, True, True),
}


@pytest.mark.parametrize(("wanted", "rings"), RINGS.items(), ids=[" ".join(wanted) for wanted in RINGS])
def test_links_close_the_dims_that_the_provider_closes(wanted: tuple[str, str], rings: tuple[bool, ...]) -> None:
    shape = BUILTIN.find_shape(*wanted)

    assert shape
    assert tuple(is_ring for _, is_ring in shape.torus) == rings


# ICI or NVLink of a chip in both directions, and the network of a host, as pages tell them: GB/s, Gb/s.
LINKS = {
    "tpu-v5e": ("2x4", 400, 200),
    "tpu-v5p": ("4x4x4", 1200, 200),
    "tpu-v6e": ("4x4", 800, 400),
    "tpu-v7x": ("4x4x4", 1200, 400),
    "nvidia-a100-80gb": ("8", 600, 100),
    "nvidia-h100": ("8", 900, 800),
    "nvidia-h200": ("8", 900, 3200),
    "nvidia-b200": ("8", 1800, 3200),
    "nvidia-gb200": ("72", 1800, 1600),
}


@pytest.mark.parametrize(("name", "published"), LINKS.items(), ids=LINKS.keys())
def test_links_and_network_match_the_published_bandwidth(name: str, published: tuple[str, int, int]) -> None:
    topology, both_ways, network = published
    shape = BUILTIN.find_shape(name, topology)

    assert shape
    assert shape.rates.link * shape.rates.num_links * 2 * shape.devices_per_chip == pytest.approx(both_ways * 1e9)
    assert shape.network_per_host == pytest.approx(network * 1e9 / 8)


def test_rows_are_added_and_replaced_without_a_change_of_the_table() -> None:
    small = Accelerator("nvidia-h100", "cuda", "nvidia.com/gpu", (SliceTopology("2"),), 0)
    new = Accelerator("nvidia-l4", "cuda", "nvidia.com/gpu", (SliceTopology("1"),), 0)
    extended = BUILTIN.with_rows([small, new])

    assert extended.accelerators == (*BUILTIN.accelerators, "nvidia-l4")
    assert extended.find_shape("nvidia-h100", "8") is None
    assert extended.find_shape("nvidia-l4", "1")
    assert BUILTIN.find_shape("nvidia-h100", "8")
