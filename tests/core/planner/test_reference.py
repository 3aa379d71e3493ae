"""The reference of preference optimization in the plan: parameters, forward pass, and pairs that stay together."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.planner.test_frozen import H100, ONE, layout_of
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.batch_split import split_batch
from trainingjob_operator.core.planner.flops import count_step_flops, count_useful_flops, count_visible_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.memory import USABLE_MEMORY_SHARE, estimate_device_memory
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_step
from trainingjob_operator.core.planner.snapshots import snapshot_bytes
from trainingjob_operator.core.planner.strategy import describe_search
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

DPO = {"objective": {"type": "dpo"}}
LORA = {"lora": {"rank": 8, "alpha": 8, "targets": ["*.query"]}}
LARGE = {"model.numLayers": 8, "model.vocabSize": 262144}


def test_the_state_holds_the_trained_parameters_twice(make_spec: MakeSpec) -> None:
    plain, pairs, adapters, adapted = (make_spec(LARGE | changes) for changes in ({}, DPO, LORA, LORA | DPO))
    size, trained = resolve(plain.model).num_parameters, resolve_network(adapted).num_trainable_parameters

    memory = {name: estimate_device_memory(spec, ONE) for name, spec in (("plain", plain), ("pairs", pairs))}

    assert memory["pairs"].params == 2 * memory["plain"].params == 8 * size
    assert (memory["pairs"].gradients, memory["pairs"].optimizer) == (4 * size, 8 * size)
    assert estimate_device_memory(adapted, ONE).params == estimate_device_memory(adapters, ONE).params + 4 * trained
    assert snapshot_bytes(pairs, layout_of(fsdp=8)) == pytest.approx(16 * size, rel=0.05)


def test_the_reference_adds_a_forward_pass(make_spec: MakeSpec) -> None:
    plain, pairs = (describe_workload(make_spec(H100 | changes)) for changes in ({}, DPO))
    layout = layout_of(fsdp=8)

    for count in (count_step_flops, count_visible_flops):
        assert count(pairs, layout) == pytest.approx(4 / 3 * count(plain, layout), rel=1e-3)
    assert count_useful_flops(pairs) == pytest.approx(4 / 3 * count_useful_flops(plain), rel=1e-3)


@pytest.mark.parametrize("schedule", ["gpipe", "circular", "oneForwardOneBackward"])
def test_the_reference_runs_forward_on_each_schedule(make_spec: MakeSpec, schedule: str) -> None:
    changes = {"model.numLayers": 4, "parallelism.pipeline": {"schedule": schedule}}
    plain, pairs = (describe_workload(make_spec(changes | more)) for more in ({}, DPO))
    layout = layout_of(stage=2, fsdp=4)
    passes = 4 if schedule == "oneForwardOneBackward" else 3  # that one runs each layer forward twice

    share = count_step_flops(pairs, layout) / count_step_flops(plain, layout)

    assert share == pytest.approx(1 + 1 / passes, rel=0.05)


def test_chunks_of_logits_are_computed_again(make_spec: MakeSpec) -> None:
    chunks = {"memory.lossChunks": 4}
    layout = layout_of(fsdp=8)
    whole, chunked = (describe_workload(make_spec(DPO | changes)) for changes in ({}, chunks))
    head = 2 * resolve(make_spec({}).model).head_matrix.size * whole.length

    assert count_step_flops(chunked, layout) - count_step_flops(whole, layout) == head


def test_the_reference_gathers_its_parameters_once(make_spec: MakeSpec) -> None:
    plain, pairs = (
        sum(sum_by_axes(predict_traffic(describe_workload(make_spec(H100 | one)), layout_of(fsdp=8), "cuda")).values())
        for one in ({}, DPO)
    )

    assert 1.2 * plain < pairs < 1.5 * plain


def test_a_step_with_a_reference_takes_longer(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    plain, pairs = (predict_step(make_spec(LARGE | H100 | one), shape, layout_of(fsdp=8)) for one in ({}, DPO))

    assert plain
    assert pairs
    assert 1.1 < pairs.memory_seconds / plain.memory_seconds < 1.6
    assert pairs.mfu > plain.mfu  # the batch counts pairs, with the same layout


PAIRS: dict[str, tuple[int, dict[str, Any], tuple[int, int, int]]] = {
    "a batch of pairs": (8, {}, (16, 1, 0)),
    "on shards": (8, {"data": 2}, (8, 1, 0)),
    "padding is that of pairs": (7, {"data": 2}, (8, 1, 2)),
}


@pytest.mark.parametrize(("batch", "degrees", "want"), PAIRS.values(), ids=PAIRS.keys())
def test_pairs_stay_together(
    make_spec: MakeSpec, batch: int, degrees: dict[str, Any], want: tuple[int, int, int]
) -> None:
    spec = make_spec(DPO | {"training.globalBatchSize": batch})

    split = split_batch(spec, ONE | degrees, estimate_device_memory(spec, ONE), 0)

    assert split
    assert (split.sequences, split.accumulation, split.padding) == want
    assert spec.tokens_per_step == 2 * batch * spec.training.sequence_length


def test_memory_for_one_sequence_does_not_hold_a_pair(make_spec: MakeSpec) -> None:
    spec = make_spec(DPO | {"training.globalBatchSize": 8, "training.maxPerDeviceBatch": 3})
    device = estimate_device_memory(spec, ONE)
    least, pair = (int(device.estimate(number, 1).total / USABLE_MEMORY_SHARE) + 1 for number in (1, 2))

    assert split_batch(spec, ONE, device, least) is None
    tight, free = (split_batch(spec, ONE, device, num_bytes) for num_bytes in (pair, 2**40))
    assert tight
    assert free
    assert (tight.sequences, tight.accumulation) == (2, 8)
    assert (free.sequences, free.accumulation) == (4, 4)


def test_the_message_about_memory_names_a_pair(make_spec: MakeSpec) -> None:
    huge = {"model.embedDim": 65536, "model.mlpDim": 262144, "model.numLayers": 64}

    plan = plan_job(make_spec(H100 | huge | DPO))

    assert "One pair of sequences on" in plan.sizes[0].invalid_reason


def test_a_mesh_search_is_not_shared_by_other_objectives(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape

    plain, pairs, smooth = (
        describe_search(make_spec(H100 | changes), shape)
        for changes in ({}, DPO, {"objective": {"type": "dpo", "dpo": {"labelSmoothing": 0.1}}})
    )

    assert plain != pairs
    assert pairs == smooth
