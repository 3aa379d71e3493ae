"""Administrators' accelerators: they hold where they can be used, and are left out by name where not."""

from pathlib import Path
from typing import Any

import pytest

from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Rates, SliceShape
from trainingjob_operator.shell.accelerators import HardwareTable, load_accelerators, read_accelerators

ROW: dict[str, Any] = {"platform": "cuda", "resource": "nvidia.com/gpu", "topologies": {"8": {}}}
FULL: dict[str, Any] = {
    "platform": "tpu",
    "resource": "example.com/chip",
    "topologies": {"2x4": {"hosts": 2, "wraps": [False, True]}},
    "memory": "16Gi",
    "hostMemory": "64Gi",
    "nodeLabels": {"example.com/kind": "fast"},
    "topologyLabel": "example.com/topology",
    "exclusiveTopology": "example.com/rack",
    "taints": ["example.com/arm"],
    "devicesPerChip": 2,
    "rates": {"bfloat16": 1e15, "float8": 2e15, "int8": 3e15, "float32": "1e+14", "memory": 4e12, "link": 5e10}
    | {"numLinks": 4, "network": 6e9, "host": 2e10},
    "source": "https://example.com",
}


def test_a_row_becomes_a_slice() -> None:
    table = read_accelerators({"example-chip": FULL})

    assert table.invalid_rows == ()
    assert table.hardware.find_shape("example-chip", "2x4") == SliceShape(
        accelerator="example-chip",
        platform="tpu",
        topology="2x4",
        num_hosts=2,
        devices_per_host=8,
        resource="example.com/chip",
        node_labels=(("example.com/kind", "fast"), ("example.com/topology", "2x4")),
        exclusive_topology="example.com/rack",
        memory_bytes=16 * 2**30,
        devices_per_chip=2,
        taints=("example.com/chip", "example.com/arm"),
        torus=((2, False), (4, True)),
        rates=Rates(1e15, 2e15, 3e15, 1e14, 4e12, 5e10, 4, 6e9, 2e10),
        host_memory_bytes=4 * 64 * 2**30,
    )


def test_omitted_rates_of_a_row_are_empty() -> None:
    shape = read_accelerators({"gpu": ROW}).hardware.find_shape("gpu", "8")

    assert shape
    assert (shape.memory_bytes, shape.rates, shape.node_labels, shape.exclusive_topology) == (0, Rates(), (), "")


def test_row_may_replace_a_built_in_one() -> None:
    hardware = read_accelerators({"nvidia-h100": {**ROW, "nodeLabels": {"gpu": "h100"}}}).hardware

    assert hardware.accelerators == BUILTIN.accelerators
    assert hardware.accelerators_by_name["nvidia-h100"].node_labels == (("gpu", "h100"),)


BAD: dict[str, tuple[str, Any, str]] = {
    "no row at all": ("gpu", None, "the row: Input should be"),
    "a field that no row has": ("gpu", {**ROW, "hosts": 2}, "hosts: Extra inputs are not permitted."),
    "no slices": ("gpu", {**ROW, "topologies": {}}, "topologies: Dictionary should have at least 1 item"),
    "a topology that is none": ("gpu", {**ROW, "topologies": {"8x": {}}}, "topologies.8x.[key]: String should match"),
    "another platform": ("gpu", {**ROW, "platform": "rocm"}, "platform: Input should be 'tpu' or 'cuda'."),
    "a resource without a domain": ("gpu", {**ROW, "resource": "gpu"}, "resource: String should match"),
    "memory that is no amount": ("gpu", {**ROW, "memory": "80 GB"}, "memory: String should match"),
    "a rate below zero": ("gpu", {**ROW, "rates": {"link": -1}}, "rates.link: Input should be greater than"),
    "a rate without end": (
        "gpu",
        {**ROW, "rates": {"link": float("inf")}},
        "rates.link: Input should be a finite number",
    ),
    "hosts that do not divide the chips": (
        "gpu",
        {**ROW, "topologies": {"8": {"hosts": 3}}},
        "topologies.8.hosts: 3 must divide its 8 chips.",
    ),
    "more wraps than dims": (
        "gpu",
        {**ROW, "topologies": {"2x4": {"wraps": [True, True, True]}}},
        "topologies.2x4.wraps: must have 2 values, not 3.",
    ),
    "a name that no job could write": ("My_GPU", ROW, "the name must be at most 63 lower-case letters"),
    "a name that is too long": ("g" * 64, ROW, "the name must be at most 63 lower-case letters"),
    "cpu": ("cpu", ROW, "must not be the name of the built-in accelerator."),
}


@pytest.mark.parametrize(("name", "row", "why"), BAD.values(), ids=BAD.keys())
def test_a_bad_row_is_left_out_by_name_and_the_others_hold(name: str, row: Any, why: str) -> None:
    table = read_accelerators({name: row, "good": ROW})

    (refused,) = table.invalid_rows
    assert str(refused).startswith(f"accelerators.{name}: {why}")
    assert table.hardware.accelerators == (*BUILTIN.accelerators, "good")


def test_a_bad_row_in_the_place_of_a_built_in_one_leaves_that() -> None:
    table = read_accelerators({"nvidia-h100": {"platform": "cuda"}})

    assert [refused.name for refused in table.invalid_rows] == ["nvidia-h100"]
    assert "resource: Field required. topologies: Field required." in table.invalid_rows[0].reason
    assert table.hardware.find_shape("nvidia-h100", "8")


FILES: dict[str, tuple[bytes, str]] = {
    "a list": (b"- gpu", "accelerators: must be a map from names to accelerators."),
    "no YAML": (b"a: [", "is not valid YAML: while parsing"),
    "no text": (b"\xff\xfe\xfa", "is not valid YAML: "),
    "too deep": (b"[" * 1200, "is not valid YAML: "),
}


@pytest.mark.parametrize(("content", "why"), FILES.values(), ids=FILES.keys())
def test_a_file_that_cannot_be_used_leaves_the_built_in_table(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "rows.yaml"
    path.write_bytes(content)
    table = load_accelerators(path)

    (refused,) = table.invalid_rows
    assert why in str(refused)
    assert table.hardware is BUILTIN


def test_a_file_that_is_not_there_leaves_the_built_in_table(tmp_path: Path) -> None:
    (refused,) = load_accelerators(tmp_path / "rows.yaml").invalid_rows

    assert str(refused) == f"accelerators: cannot read {tmp_path}/rows.yaml: No such file or directory."


@pytest.mark.parametrize("content", ["", "{}", "# nothing yet"])
def test_an_empty_file_adds_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(content)

    assert load_accelerators(path).hardware.accelerators == BUILTIN.accelerators
    assert load_accelerators(path).invalid_rows == ()


def test_a_file_s_topology_may_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text("gpu: {platform: cuda, resource: nvidia.com/gpu, topologies: {8: {}}}")

    assert load_accelerators(path).hardware.find_shape("gpu", "8")


def test_without_a_file_the_table_is_the_built_in_one() -> None:
    assert load_accelerators(None) == HardwareTable(BUILTIN, ())
