"""The plan as a picture."""

from typing import Any

from tests.support.builders import spec_manifest
from trainingjob_operator.cli.charts import BAR_WIDTH, draw_memory_bars, draw_mesh
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.validation.validate import validate_job


def plan(topology: str, count: int, ici: dict[str, int], dcn: dict[str, int], **sections: Any) -> Plan:
    spec = spec_manifest(
        slices={"accelerator": "cpu", "topology": topology, "count": count},
        parallelism={"ici": ici, "dcn": dcn},
        **sections,
    )
    checked = validate_job("drawn", spec)
    assert checked.plan, checked.problems
    return checked.plan


def test_a_large_machine_is_drawn_in_part() -> None:
    lines = draw_mesh(plan("10x2", 6, {"data": 5, "fsdp": 4}, {"data": 6}))

    assert lines[:4] == [
        "mesh on 6 slices of 10 hosts x 2 devices",
        "  dcn  data     6  slices",
        "  ici  data     5  hosts",
        "  ici  fsdp     4  2 inside a host, then hosts",
    ]
    assert lines[5].endswith(" slice 3 (of 6)")
    assert lines[6].startswith("  host 0  data 0 fsdp 0-1  host 0  data 5 fsdp 0-1")
    assert lines[7].startswith("  host 1  data 0 fsdp 2-3")
    assert len(lines) == 5 + 1 + 8 + 1
    assert lines[-1].split() == ["…", "2", "more"] * 4


def test_two_axes_over_slices_have_their_distances() -> None:
    lines = draw_mesh(plan("1x2", 4, {"fsdp": 2}, {"data": 2, "fsdp": 2}))

    assert lines[1:4] == [
        "  dcn  data     2  slices, 2 apart",
        "  dcn  fsdp     2  slices",
        "  ici  fsdp     2  inside a host",
    ]
    assert lines[-1].split("  ")[1:] == [
        "host 0",
        "data 0 fsdp 0-1",
        "host 0",
        "data 0 fsdp 2-3",
        "host 0",
        "data 1 fsdp 0-1",
        "host 0",
        "data 1 fsdp 2-3",
    ]


def test_one_device_has_no_mesh_to_draw() -> None:
    assert draw_mesh(plan("1x1", 1, {}, {})) == []


def test_a_bar_is_as_long_as_the_memory_is_full() -> None:
    _, bar = draw_memory_bars(plan("1x1", 1, {}, {}))

    assert bar.startswith("1 ")
    letters = bar.split("  ")[-1]
    assert len(letters) == BAR_WIDTH
    assert sorted(set(letters), key=letters.index) == ["P", "G", "O", "A", "T"]
