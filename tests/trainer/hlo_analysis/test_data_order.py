"""Collectives that are in order by the data alone, as programs need it that are loaded on CPUs."""

from typing import Any

import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.distillation import distillation
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import Run, spec_with
from tests.trainer.models.test_experts import LAYOUTS as EXPERT_LAYOUTS
from tests.trainer.models.test_experts import SPEC
from tests.trainer.test_feature_distance import ALTERNATING, changes_of
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram

LOOP = """HloModule made_up

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %added = f32[] add(%a, %b)
}

%body (turn: (s32[], f32[4])) -> (s32[], f32[4]) {
  %turn = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%turn), index=0
  %x = f32[4] get-tuple-element(%turn), index=1
  %summed = f32[4] IN_LOOP
  ROOT %out = (s32[], f32[4]) tuple(%i, %summed)
}

%condition (turn.1: (s32[], f32[4])) -> pred[] {
  %turn.1 = (s32[], f32[4]) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (p: f32[4], q: f32[4], n: s32[]) -> (f32[4], f32[4]) {
  %p = f32[4] parameter(0)
  %q = f32[4] parameter(1)
  %n = s32[] parameter(2)
  %start = (s32[], f32[4]) tuple(%n, %p)
  %loop = (s32[], f32[4]) while(%start), condition=%condition, body=%body
  %done = f32[4] get-tuple-element(%loop), index=1
  OUTSIDE
}
"""
IN_LOOP = "all-reduce(%x), to_apply=%sum"
AGAIN = """%begin = (s32[], f32[4]) tuple(%n, OF)
  %again = (s32[], f32[4]) while(%begin), condition=%condition, body=%body"""
SUM_OF_ITS_OWN = "%other = f32[4] all-reduce(%q), to_apply=%sum"
SUM_OF_THE_LOOP = """%with = f32[4] add(%done, %q)
  %other = f32[4] all-reduce(%with), to_apply=%sum"""
OUTSIDE = {
    "a sum of something else": (SUM_OF_ITS_OWN, [("loop", "other")]),
    "a gather that is begun and done": ("%other = f32[8] all-gather-start(%q), dimensions={0}", [("loop", "other")]),
    "a sum of what the loop made": (SUM_OF_THE_LOOP, []),
    "another loop": (AGAIN.replace("OF", "%q"), [("loop", "again")]),
    "another loop over what the loop made": (AGAIN.replace("OF", "%done"), []),
    "no collective": ("%other = f32[4] negate(%q)", []),
}


@pytest.mark.parametrize(("outside", "unordered"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_collectives_of_a_loop_are_ordered_with_those_outside(outside: str, unordered: list[tuple[str, str]]) -> None:
    program = HloProgram(LOOP.replace("IN_LOOP", IN_LOOP).replace("OUTSIDE", outside))

    assert [(call.name, rival.name) for call, rival in find_unordered_collectives(program)] == unordered


def test_a_loop_that_sends_nothing_needs_no_order() -> None:
    program = HloProgram(LOOP.replace("IN_LOOP", "negate(%x)").replace("OUTSIDE", SUM_OF_ITS_OWN))

    assert list(find_unordered_collectives(program)) == []


PAIRS: dict[str, int] = {"devices_per_host": 8, "rows_per_shard": 2, "accumulation": 2}
SPREAD = "data 2 over slices, fsdp 4"
CASES: dict[str, tuple[TrainingJobSpec, Layout]] = {
    "pairs": (spec_with(objective={"type": "dpo"}), make_layout(ici=AxisDegrees(data=2, fsdp=2, tensor=2), **PAIRS)),
    "pairs, stages": (
        spec_with(objective={"type": "dpo"}),
        make_layout(ici=AxisDegrees(stage=2, context=2, data=2), microbatches=2, **PAIRS),
    ),
    "teacher": (spec_with(objective=distillation()), LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"]),
    "features": (spec_with(**changes_of()), LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"]),
    "teacher, chunks, stages": (
        spec_with(objective=distillation(), memory__lossChunks=3),
        make_layout(ici=AxisDegrees(stage=2, context=2, data=2), microbatches=2, **PAIRS),
    ),
    "features, chunks, alternating stages": (
        spec_with(**changes_of(), **ALTERNATING, memory__lossChunks=3),
        make_layout(ici=AxisDegrees(stage=2, context=2, data=2), microbatches=2, **PAIRS),
    ),
    **{name: (spec_with(), layout) for name, layout in LAYOUTS.items() if "2 stages, fsdp" not in name},
    **{f"experts, {name}": (SPEC, layout) for name, layout in EXPERT_LAYOUTS.items() if "stages" not in name},
    "tied": (spec_with(model__tieEmbeddings=True), LAYOUTS[SPREAD]),
    "optimizer over data": (spec_with(parallelism__shardOptimizerOverData=True), LAYOUTS[SPREAD]),
    "computed again": (spec_with(memory__remat="full"), LAYOUTS[SPREAD]),
    "chunks": (spec_with(memory__lossChunks=3), LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"]),
    "one layer": (spec_with(model__numLayers=1), LAYOUTS[SPREAD]),
    "half precision": (spec_with(precision__compute="bfloat16", precision__params="bfloat16"), LAYOUTS[SPREAD]),
}
"""Left out are pipelines that XLA rearranges: their programs are compiled each time."""


@pytest.mark.thorough
@each("case", CASES, SPREAD)
def test_a_step_sends_in_the_order_of_its_data(case: tuple[TrainingJobSpec, Layout]) -> None:
    run = Run(*case)
    controls = run.controls()
    train = run.step.lower(run.state, run.batch(1), controls)
    reference = run.state.reference or run.teacher
    evaluate = run.evaluation.lower(run.state.params, run.held_out_batch(), controls.signals, reference)

    assert [describe(lowered) for lowered in (train, evaluate)] == [[], []]


def describe(lowered: Any) -> list[str]:
    """Return the pairs of collectives of a program that may begin in any order."""
    program = HloProgram(lowered.compile().as_text())
    return [f"{call.name}, {rival.name} {rival.shape}" for call, rival in find_unordered_collectives(program)]
