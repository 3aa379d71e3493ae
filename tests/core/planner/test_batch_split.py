"""How a batch is cut, with and without a pipeline."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainingjob_api.base import AXES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.batch_split import plan_fewest_microbatches, split_batch
from trainingjob_operator.core.planner.memory import USABLE_MEMORY_SHARE, estimate_device_memory
from trainingjob_operator.core.planner.mesh import divisors

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)
CUTS: dict[str, tuple[int, int | None, dict[str, int], tuple[int, int, int, int]]] = {
    "no pipeline": (8, None, {}, (8, 1, 1, 0)),
    "microbatches mean nothing without stages": (8, 4, {"data": 2}, (4, 1, 1, 0)),
    "four microbatches a stage": (64, None, {"stage": 2}, (8, 8, 1, 0)),
    "as asked": (64, 16, {"stage": 2}, (4, 16, 1, 0)),
    "fewer where the batch is small": (4, None, {"stage": 2}, (1, 4, 1, 0)),
    "what divides goes before four a stage": (36, None, {"stage": 2, "data": 3}, (1, 12, 1, 0)),
    "padding where nothing divides": (7, None, {"stage": 2}, (2, 4, 1, 1)),
    "a batch smaller than the stages": (1, None, {"stage": 4}, (1, 4, 1, 3)),
}


@pytest.mark.parametrize(("batch", "requested", "degrees", "want"), CUTS.values(), ids=CUTS.keys())
def test_a_batch_is_cut(
    make_spec: MakeSpec, batch: int, requested: int | None, degrees: dict[str, int], want: tuple[int, int, int, int]
) -> None:
    spec = make_spec({"training.globalBatchSize": batch, "parallelism.pipeline.microbatches": requested})
    cut = split_batch(spec, ONE | degrees, estimate_device_memory(spec, ONE), 0)

    assert cut
    assert (cut.sequences, cut.microbatches, cut.accumulation, cut.padding) == want


@given(
    batch=st.integers(1, 5000),
    data=st.integers(1, 64),
    stage=st.integers(1, 16),
    limit=st.integers(1, 64),
)
def test_every_row_is_in_one_place(make_spec: MakeSpec, batch: int, data: int, stage: int, limit: int) -> None:
    spec = make_spec({"training.globalBatchSize": batch, "training.maxPerDeviceBatch": limit})
    degrees = ONE | {"data": data, "stage": stage}
    cut = split_batch(spec, degrees, estimate_device_memory(spec, ONE), 0)

    assert cut
    assert cut.sequences <= limit
    assert cut.microbatches % stage == 0
    assert cut.saved_microbatches >= plan_fewest_microbatches(spec, degrees).saved_microbatches
    assert cut.sequences * cut.accumulation * cut.microbatches * data == batch + cut.padding
    assert cut.padding < data * cut.microbatches


def test_pipeline_saves_the_rows_of_all_ticks(make_spec: MakeSpec) -> None:
    spec = make_spec({"training.globalBatchSize": 4096, "parallelism.pipeline.microbatches": 16})
    degrees = ONE | {"stage": 4}
    device = estimate_device_memory(spec, degrees)
    cut = split_batch(spec, degrees, device, device.estimate(8, 19).total * 2)

    assert cut
    assert cut.saved_microbatches == 19
    assert device.estimate(2 * cut.sequences, cut.saved_microbatches).total > device.estimate(8, 19).total
    assert split_batch(spec, degrees, device, 1000) is None


@given(
    batch=st.integers(1, 200),
    data=st.integers(1, 4),
    stage=st.sampled_from((1, 2)),
    vocab=st.sampled_from((257, 50_000)),
    share=st.floats(0.5, 20.0),
    keeps_table=st.booleans(),
)
def test_a_cut_takes_the_fewest_steps_that_its_own_estimate_allows(
    make_spec: MakeSpec, batch: int, data: int, stage: int, vocab: int, share: float, *, keeps_table: bool
) -> None:
    spec = make_spec({"training.globalBatchSize": batch, "model.vocabSize": vocab})
    degrees = ONE | {"data": data, "stage": stage}
    device = estimate_device_memory(spec, degrees)
    fewest = plan_fewest_microbatches(spec, degrees)
    memory_bytes = int(share * device.estimate(1, fewest.saved_microbatches).total)

    def list_fitting(rows_a_step: int, turns: int) -> list[int]:
        needs = {
            rows: device.estimate(rows, turns, keeps_embedding=keeps_table and rows < rows_a_step).total
            for rows in divisors(rows_a_step)
        }
        return [rows for rows, need in needs.items() if need <= int(memory_bytes * USABLE_MEMORY_SHARE)]

    cut = split_batch(spec, degrees, device, memory_bytes, keeps_table=keeps_table)

    if cut is None:
        assert list_fitting(-(-batch // (data * fewest.microbatches)), fewest.saved_microbatches) == []
    else:
        assert cut.sequences == max(list_fitting(cut.sequences * cut.accumulation, cut.saved_microbatches))


def test_a_cut_has_fewer_microbatches_if_no_sequence_fits_with_more(make_spec: MakeSpec) -> None:
    spec = make_spec({"training.globalBatchSize": 26})
    degrees = ONE | {"stage": 2}
    device = estimate_device_memory(spec, degrees)
    memory_bytes = int((device.estimate(1, 3).total + 1) / USABLE_MEMORY_SHARE)
    wide, narrow = (split_batch(spec, degrees, device, memory) for memory in (0, memory_bytes))

    assert wide
    assert (wide.sequences, wide.microbatches, wide.accumulation) == (1, 26, 1)
    assert narrow
    assert (narrow.sequences, narrow.microbatches, narrow.accumulation) == (1, 2, 13)


def test_a_cut_of_a_smaller_batch_has_more_padding(make_spec: MakeSpec) -> None:
    spec = make_spec({"training.globalBatchSize": 7})
    cut = split_batch(spec, ONE | {"stage": 2}, estimate_device_memory(spec, ONE), 0)

    assert cut
    assert cut.padding == 1
    assert cut.pad(3) == replace(cut, padding=4)
