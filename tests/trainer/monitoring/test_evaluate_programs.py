"""Evaluations with other batches than training: the same scores, each by the program of its batch."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.tiny import make_config, make_layout, make_spec
from tests.support.trainer.training import Run
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.evaluation_memory import count_evaluation_bytes
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.monitoring.evaluate_programs import EvaluateProgram, compile_evaluations
from trainingjob_trainer.monitoring.evaluation import Evaluator
from trainingjob_trainer.objectives.scoring import Scores
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import Signal

LIMITS = {"as-in-training": None, "one": 1, "few": 3, "many": 100}
SIZES: dict[str, tuple[Layout, list[tuple[int, int, int]]]] = {
    "one slice of four devices": (
        make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=4), rows_per_shard=2, accumulation=2),
        [(2, 1, 8), (4, 1, 4), (2, 1, 8), (1, 1, 16)],
    ),
    "two slices of four devices": (
        make_layout(
            num_slices=2,
            devices_per_host=4,
            ici=AxisDegrees(fsdp=4),
            dcn=AxisDegrees(data=2),
            rows_per_shard=2,
        ),
        [(1, 1, 16), (2, 1, 8), (1, 1, 16), (1, 1, 16)],
    ),
    "two stages": (
        make_layout(
            devices_per_host=4, ici=AxisDegrees(stage=2, fsdp=2), rows_per_shard=2, accumulation=2, microbatches=2
        ),
        [(2, 2, 4), (4, 2, 2), (2, 2, 4), (1, 2, 8)],
    ),
}


LARGE = {"model__embedDim": 256, "model__mlpDim": 512, "model__vocabSize": 4096, "training__sequenceLength": 128}
"""A model whose matrices and logits are larger than what a program has beside them."""


def make_run(layout: Layout, limits: dict[str, int | None], **changes: int) -> tuple[Run, dict[str, EvaluateProgram]]:
    evaluation = [
        {"name": name, "path": "/held-out", "everySteps": 1, "numBatches": "all"}
        | ({} if limit is None else {"maxPerDeviceBatch": limit})
        for name, limit in limits.items()
    ]
    changes |= {"training__globalBatchSize": 16}
    written = make_spec(Path("/unused/here"), Path("/unused"), evaluation=evaluation, **changes)
    run = Run(TrainingJobSpec.model_validate(written), layout)
    cache = CompileCache("", "", make_config(written), layout, ProcessGroup(0, 1))
    return run, compile_evaluations(run.steps, cache, run.spec, layout)


def measure(run: Run, programs: dict[str, EvaluateProgram]) -> dict[str, Scores]:
    """Return the scores of 37 sequences: two whole batches, and one of five sequences."""
    length = run.spec.training.sequence_length
    tokens = np.random.default_rng(1).integers(0, 257, 37 * length + 1, dtype=np.uint16)
    text = TokenDataset("", tokens, length, token_bytes=np.ones(272, np.uint32))
    indexes = {one.name: text for one in run.spec.evaluation}
    evaluator = Evaluator(run.spec, indexes, run.steps, programs, run.batches)
    measured = evaluator.measure(1, run.state.params, lambda: Signal.NONE, lambda _: None)
    assert measured
    return measured


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "shapes"), SIZES.values(), ids=SIZES.keys())
def test_scores_do_not_depend_on_the_sequences_at_once(layout: Layout, shapes: list[tuple[int, int, int]]) -> None:
    run, programs = make_run(layout, LIMITS)

    scores = measure(run, programs)

    assert [programs[name].shape for name in LIMITS] == shapes
    assert all(math.prod(shape) >= 16 for shape in shapes)
    want = scores["as-in-training"]
    for name in LIMITS:
        assert scores[name][:3] == pytest.approx(want[:3], rel=1e-6)


@pytest.mark.thorough
def test_evaluations_of_one_layout_share_a_program() -> None:
    _, programs = make_run(SIZES["one slice of four devices"][0], {"first": None, "second": 2, "third": 1, "last": 1})

    assert programs["first"].run is programs["second"].run
    assert programs["third"].run is programs["last"].run is not programs["first"].run


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("layout", [layout for layout, _ in SIZES.values()], ids=SIZES.keys())
def test_the_plan_bounds_the_memory_of_an_evaluation(layout: Layout, limit: int) -> None:
    run, programs = make_run(layout, {"held-out": limit}, **LARGE)
    compiled: Any = programs["held-out"].run
    memory = compiled.memory_analysis()
    device = estimate_device_memory(run.spec, combine_degrees(layout.ici, layout.dcn))

    planned = count_evaluation_bytes(run.spec, layout.for_evaluation(limit)) - device.optimizer

    assert 0.4 * planned < memory.argument_size_in_bytes + memory.temp_size_in_bytes <= planned
