"""Operations that are read off a compiled program, and how often its loops turn."""

import pytest

from tests.support.trainer.snippets import one
from trainingjob_trainer.hlo_analysis.flops import count_flops
from trainingjob_trainer.hlo_analysis.parser import HloProgram

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

    assert count_flops(HloProgram(text)) == turns * ONE_PRODUCT


def test_metadata_of_a_kernel_may_take_several_lines() -> None:
    kernel = """  %k = f32[4,8]{1,0} custom-call(%x), frontend_attributes={kernel_metadata={
"xprof_metadata":"{}"
}}, metadata={op_name="attention"}
  %y = """
    text = LOOP.replace("FIRST", "0").replace("STEP", "1").replace("BACKEND", "").replace("  %y = ", kernel)

    assert count_flops(HloProgram(text)) == 10 * ONE_PRODUCT


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


@pytest.mark.parametrize(
    ("cost", "want"),
    [(',"cost_estimate":{"flops":"34359738368","bytes_accessed":"83886112"}', 2 * 8192 * 1024 * 2048), ("", 0)],
    ids=["stated", "not stated"],
)
def test_a_kernel_counts_what_its_program_states(cost: str, want: int) -> None:
    line = (
        "ROOT %ragged-dot = bf16[8192,2048]{1,0} custom-call(%sizes, %rows, %matrices), "
        'custom_call_target="tpu_custom_call", metadata={op_name="ragged_dot_general"}, '
        f'backend_config={{"custom_call_config":{{"body":"bW9k"{cost}}}}}'
    )

    assert count_flops(one(line)) == want
    assert count_flops(one(line), expert_shards=4) == want // 4
