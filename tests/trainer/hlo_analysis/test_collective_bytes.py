"""Bytes that are read off a compiled program, by the mesh axes that they travel along."""

import pytest

from tests.support.trainer.snippets import one
from tests.support.trainer.tiny import make_layout
from trainingjob_api.compile_report import Collective
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.hlo_analysis.collective_bytes import count_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram

FOUR = make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2))
TWO_SLICES = make_layout(num_slices=2, devices_per_host=2, ici=AxisDegrees(fsdp=2), dcn=AxisDegrees(data=2))
CASES = {
    "a gather, groups written out": (
        "%c = bf16[8,16]{1,0} all-gather(%x), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}",
        ("ici", ("tensor",), "all-gather", 128),
    ),
    "a gather, groups as a transposed iota": (
        "%c = bf16[8,16]{1,0} all-gather(%x), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}",
        ("ici", ("fsdp",), "all-gather", 128),
    ),
    "a sum, groups as axes of a mesh": (
        "%c = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups=mesh['a'=2,'b'=2] {'a'}, to_apply=%add",
        ("ici", ("fsdp",), "all-reduce", 32),
    ),
    "a sum over all devices": (
        "%c = (f32[8]{0}, f32[]) all-reduce(%x, %w), channel_id=1, replica_groups={}, to_apply=%add",
        ("ici", ("fsdp", "tensor"), "all-reduce", 54),
    ),
    "a scattered sum": (
        "%c = f32[8]{0} reduce-scatter(%x), channel_id=1, replica_groups={{0,2},{1,3}}, dimensions={0}",
        ("ici", ("fsdp",), "reduce-scatter", 32),
    ),
    "an asynchronous gather": (
        "%c = (bf16[4], bf16[8]) all-gather-start(%x), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}",
        ("ici", ("tensor",), "all-gather", 8),
    ),
    "a permutation of half of the devices": (
        "%c = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,2},{1,3}}",
        ("ici", ("fsdp",), "permute", 16),
    ),
}


@pytest.mark.parametrize(("line", "want"), CASES.values(), ids=CASES.keys())
def test_bytes_that_a_device_sends(line: str, want: tuple[str, tuple[str, ...], str, int]) -> None:
    (found,) = count_collectives(one(f"ROOT {line}"), FOUR)

    assert (found.network, found.axes, found.kind, found.bytes) == want


BYTES = {
    "pred": 128, "s2": 32, "u4": 64, "s8": 128, "bf16": 256, "f32": 512, "c64": 1024, "c128": 2048,
    "f4e2m1fn": 64, "f8e4m3fn": 128, "f8e8m0fnu": 128,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "want"), BYTES.items())
def test_type_has_the_bits_of_its_name(kind: str, want: int) -> None:
    line = f"ROOT %c = {kind}[8,16]{{1,0}} all-gather(%x), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}"

    (found,) = count_collectives(one(line), FOUR)

    assert found.bytes == want // 2


def test_type_of_unknown_size_is_rejected() -> None:
    line = "ROOT %c = posit[8,16]{1,0} all-gather(%x), channel_id=1, replica_groups={{0,1},{2,3}}"

    with pytest.raises(ValueError, match="the type posit has no known size"):
        count_collectives(one(line), FOUR)


def test_all_reduce_of_which_each_device_uses_a_part_is_a_reduce_scatter() -> None:
    lines = "%s = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups={{0,2},{1,3}}, to_apply=%add\n"
    lines += "ROOT %part = f32[4]{0} dynamic-slice(%s, %w), dynamic_slice_sizes={4}"

    (found,) = count_collectives(one(lines), FOUR)

    assert (found.kind, found.bytes) == ("reduce-scatter", 16)


def test_several_parts_of_a_sum_may_be_kept() -> None:
    lines = "%s = (f32[8]{0}, f32[4]{0}) all-reduce(%x, %w), replica_groups={{0,2},{1,3}}, to_apply=%add\n"
    lines += "%s0 = f32[8]{0} get-tuple-element(%s), index=0\n%s1 = f32[4]{0} get-tuple-element(%s), index=1\n"
    lines += "%p0 = f32[4]{0} dynamic-slice(%s0, %w)\n%p1 = f32[2]{0} dynamic-slice(%s1, %w)\n"

    (kept,) = count_collectives(one(lines + "ROOT %parts = (f32[4], f32[2]) tuple(%p0, %p1)"), FOUR)
    (whole,) = count_collectives(one(lines + "ROOT %parts = (f32[4], f32[8]) tuple(%p0, %s0)"), FOUR)

    assert (kept.kind, kept.bytes) == ("reduce-scatter", 24)
    assert (whole.kind, whole.bytes) == ("all-reduce", 48)


GATHER = "all-gather(%x), channel_id=5, replica_groups={{0,1},{2,3}}, dimensions={0}"
PIECES = f"""HloModule m
%piece.1 (x: bf16[4]) -> bf16[8] {{
  %x = bf16[4]{{0}} parameter(0)
  ROOT %c = bf16[8]{{0}} {GATHER}
}}
%piece.2 (x: bf16[4]) -> bf16[8] {{
  %x = bf16[4]{{0}} parameter(0)
  ROOT %c = bf16[8]{{0}} {GATHER}
}}
ENTRY %main (x: bf16[4]) -> bf16[8] {{
  %x = bf16[4]{{0}} parameter(0)
  %a = bf16[8]{{0}} fusion(%x), kind=kCustom, calls=%piece.1
  ROOT %b = bf16[8]{{0}} fusion(%x), kind=kCustom, calls=%piece.2
}}
"""


def test_pieces_of_one_collective_count_once() -> None:
    (found,) = count_collectives(HloProgram(PIECES), FOUR)

    assert found.bytes == 8


def test_collectives_that_share_a_channel_count_each() -> None:
    (found,) = count_collectives(one(f"%c = bf16[8] {GATHER}\nROOT %d = bf16[8] {GATHER}"), FOUR)

    assert found.bytes == 16


def test_bytes_between_tpu_slices() -> None:
    line = (
        "ROOT %send = (f32[16]{0}, u32[], token[]) send(%x, %w), channel_id=2, is_host_transfer=true, "
        'frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )

    assert count_collectives(one(line), TWO_SLICES) == (
        Collective(network="dcn", axes=("data",), kind="all-reduce", bytes=64),
    )


def test_groups_over_slices_of_one_program_are_on_the_slow_network() -> None:
    line = "ROOT %c = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups={{0,2},{1,3}}, to_apply=%add"

    (found,) = count_collectives(one(line), TWO_SLICES)

    assert (found.network, found.axes) == ("dcn", ("data",))
