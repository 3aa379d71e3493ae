"""What is read off a compiled program: how often loops turn, operations, and bytes by mesh axes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.tiny import make_layout, make_spec
from trainingjob_api.compiled import Collective, CompileAnswer
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.machine import AxisDegrees
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_trainer.compiling.account import compile_step
from trainingjob_trainer.compiling.arithmetic import count_flops
from trainingjob_trainer.compiling.hlo import Program
from trainingjob_trainer.compiling.traffic import count_collectives

LOOP = """HloModule jit_train, is_scheduled=true

%body (param: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %param = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%param), index=0
  %step = s32[] constant(STEP)
  %next = s32[] add(%i, %step)
  %x = f32[4,8]{1,0} get-tuple-element(%param), index=1
  %w = f32[8,8]{1,0} constant({...})
  %y = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="a=b, (c"}
  ROOT %out = (s32[], f32[4,8]) tuple(%next, /*index=1*/%y)
}

%condition (param.1: (s32[], f32[4,8])) -> pred[] {
  %param.1 = (s32[], f32[4,8]) parameter(0)
  %i.1 = s32[] get-tuple-element(%param.1), index=0
  %limit = s32[] constant(10)
  ROOT %more = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %first = s32[] constant(FIRST)
  %copied = s32[] copy(%first)
  %start = (s32[], f32[4,8]) tuple(%copied, %a)
  %loop = (s32[], f32[4,8]) while(%start), condition=%condition, body=%bodyBACKEND
  ROOT %b = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""
DILATED = "window={size=4x4 stride=3x3 lhs_dilate=4x4}"
ONE_PRODUCT = 2 * 4 * 8 * 8


@pytest.mark.parametrize(
    ("first", "step", "backend", "turns"),
    [
        (0, 1, "", 10),
        (4, 1, "", 6),
        (0, 4, "", 3),
        (0, 1, ', backend_config={"known_trip_count":{"n":"7"}}', 7),
    ],
    ids=["from zero", "from four", "four at a time", "as the compiler says"],
)
def test_a_loop_s_products_count_as_often_as_it_turns(first: int, step: int, backend: str, turns: int) -> None:
    text = LOOP.replace("FIRST", str(first)).replace("STEP", str(step)).replace("BACKEND", backend)

    assert count_flops(Program(text)) == turns * ONE_PRODUCT


def one(line: str) -> Program:
    arrays = [
        "%x = bf16[4,2048,16,128]{3,1,2,0} parameter(0)",
        "%w = bf16[16,128,1,256]{3,1,0,2} parameter(1)",
        "%q = bf16[4,4,64,512]{3,2,1,0} parameter(2)",
        "%k = bf16[4,4,512,64]{3,2,1,0} parameter(3)",
    ]
    return Program("\n".join(["HloModule m", "ENTRY %main (x: bf16[1]) -> bf16[1] {", *arrays, line, "}"]))


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            "ROOT %c = bf16[4,2048,1,256]{3,1,2,0} convolution(%x, %w), window={size=1x16}, dim_labels=0b1f_1i0o->0b1f",
            2 * 4 * 2048 * 256 * 16 * 128,
        ),
        (
            f"ROOT %c = f32[4,4,512,512] convolution(%q, %k), {DILATED}, dim_labels=01fb_01oi->01bf",
            2 * 4 * 4 * 512 * 512 * 64,
        ),
    ],
    ids=["contracted over a spatial dim", "batch dims as dilated spatial dims"],
)
def test_products_that_a_tpu_writes_as_convolutions(line: str, want: int) -> None:
    assert count_flops(one(line)) == want


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


def test_a_sum_of_which_each_device_keeps_a_part_is_a_scattered_one() -> None:
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
    (found,) = count_collectives(Program(PIECES), FOUR)

    assert found.bytes == 8


def test_collectives_that_share_a_channel_count_each() -> None:
    (found,) = count_collectives(one(f"%c = bf16[8] {GATHER}\nROOT %d = bf16[8] {GATHER}"), FOUR)

    assert found.bytes == 16


def test_what_a_tpu_hands_to_the_network_between_slices() -> None:
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


@pytest.fixture
def config(tmp_path: Path, text: Path) -> RunConfig:
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path, text))
    layouts = (make_layout(devices_per_host=2, accumulation=2),)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    return RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=layouts)


def test_a_compiled_step_has_the_products_of_the_model(config: RunConfig) -> None:
    (layout,) = config.layouts
    model, length = config.spec.model, config.spec.training.sequence_length
    heads = model.num_heads * model.head_dim
    weights = model.embed_dim * (2 * heads + 2 * model.num_kv_heads * model.head_dim + 3 * model.mlp_dim)
    weights = model.num_layers * weights + model.embed_dim * model.vocab_size
    forward = 2 * weights + 4 * length * heads * model.num_layers

    step = compile_step(config, layout)

    assert step.flops == 3 * forward * length * layout.rows_per_shard * layout.accumulation
    assert step.temporaries > 0
    assert step.aliased > 0
    assert {(one.network, one.axes) for one in step.collectives} == {("ici", ("fsdp",))}


@pytest.mark.slow
def test_the_program_answers_each_size_on_a_line(config: RunConfig) -> None:
    missing = config.model_copy(update={"accelerator_platform": "cuda"})

    for asked, want in ((config, ""), (missing, "only cpu and TPUs can be compiled for")):
        ended = subprocess.run(
            [sys.executable, "-m", "trainingjob_trainer.compiling"],
            input=asked.model_dump_json(),
            capture_output=True,
            text=True,
            check=True,
        )
        (line,) = ended.stdout.splitlines()
        answer = CompileAnswer.model_validate(json.loads(line))

        assert want in answer.error
        assert bool(answer.step) is not bool(answer.error)
