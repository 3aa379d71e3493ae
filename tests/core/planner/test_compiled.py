"""The estimates compared with the record of real compilers for the same jobs (`make bench-compiler`)."""

import json
from pathlib import Path

import pytest

from e2e.benchmarks.compiler_cases import COMPILER_CASES
from trainingjob_api.base import Axis
from trainingjob_api.compile_report import CompiledStep, Network
from trainingjob_operator.core.planner.flops import count_visible_flops
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

RECORD = json.loads((Path(__file__).parents[3] / "tests/golden/compiler.json").read_text())
MEMORY, FLOPS, TRAFFIC = 0.10, 0.05, 0.05
SMALL = 0.01
"""Share of the largest traffic below which a network and its axes carry but scalars and the gradients of norms."""

UNPLANNED_TRAFFIC = (
    "v5p 2x2x2 tensor, 131,072 tokens, remat, sharded stream",
    "v5p 2x2x2 fsdp, 131,072 tokens, remat",
    "v5p 2x2x1 fsdp stage, further tokens, one forward one backward",
)
"""Rows whose traffic differs from the plan. XLA exchanges long operands in windows, or sums all of them before it
scatters. Where all stages compute the same modules of further tokens, it splits their matrices over the stages."""


def test_every_row_is_recorded() -> None:
    assert list(RECORD) == list(COMPILER_CASES)


@pytest.mark.parametrize("row", list(RECORD))
def test_memory_is_near_the_compiler_s(row: str) -> None:
    step, (size,) = CompiledStep.model_validate(RECORD[row]), plan_job(COMPILER_CASES[row]).sizes

    assert size.memory
    assert size.memory.total == pytest.approx(step.memory, rel=MEMORY)


@pytest.mark.parametrize("row", list(RECORD))
def test_flops_are_near_the_compiler_s(row: str) -> None:
    step, (size,) = CompiledStep.model_validate(RECORD[row]), plan_job(COMPILER_CASES[row]).sizes

    assert size.layout
    assert count_visible_flops(describe_workload(COMPILER_CASES[row]), size.layout) == pytest.approx(
        step.flops, rel=FLOPS
    )


@pytest.mark.parametrize("row", [row for row in RECORD if row not in UNPLANNED_TRAFFIC])
def test_traffic_is_near_the_compiler_s_along_every_axis(row: str) -> None:
    step, plan = CompiledStep.model_validate(RECORD[row]), plan_job(COMPILER_CASES[row])
    (size,) = plan.sizes
    assert size.layout
    want: dict[tuple[Network, tuple[Axis, ...]], int] = {}
    for one in step.collectives:
        want[one.network, one.axes] = want.get((one.network, one.axes), 0) + one.bytes
    predicted = sum_by_axes(predict_traffic(describe_workload(COMPILER_CASES[row]), size.layout, plan.shape.platform))
    floor = SMALL * max(want.values())

    assert {key: bytes_ for key, bytes_ in predicted.items() if bytes_ > floor} == pytest.approx(
        {key: bytes_ for key, bytes_ in want.items() if bytes_ > floor}, rel=TRAFFIC
    )
