"""Keys and values that pass along a ring: what the plan says of traffic, memory, FLOPs and kernels."""

from typing import Any

import pytest

from e2e.benchmarks.compiler_cases import DEEP, RING, job, training
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.strategy import choose_strategy
from trainingjob_operator.core.planner.traffic import predict_traffic
from trainingjob_operator.core.planner.workload import describe_workload

LENGTH, LAYERS, KEYS = 8192, 6, 4 * 128
"""Of the model `DEEP`; `KEYS` are the features of keys, and of values."""
GATHER: dict[str, Any] = {}


def planned(exchange: dict[str, Any], *, slices: int = 1, **sections: Any) -> Plan:
    """Return the plan of a job whose sequences are sharded four ways."""
    parallelism = {"ici": {"context": 4 // slices}, "dcn": {"context": slices}} | exchange
    sections = {"training": training(1, LENGTH, 1)} | sections | {"model": DEEP | sections.get("model", {})}
    where = ("tpu-v5p", "2x2x1") if slices == 1 else ("cpu", "1x2")
    return plan_job(job(*where, {}, slices=slices, parallelism=parallelism, **sections))


@pytest.mark.parametrize(
    ("remat", "window", "num_bytes"),
    [
        ("none", None, 2 * 3 * 2 + 3 * 4 + 2),  # forward and backward, gradients in float32, and back to their owner
        ("full", None, 2 * 3 * 2 + 3 * 4 + 2),
        ("none", 1024, 2 * 2 * 2 + 2 * 4 + 2),  # the neighbors of both chunks
        ("none", 1, 0),
    ],
)
def test_a_device_passes_its_keys_to_the_others(remat: str, window: int | None, num_bytes: int) -> None:
    plan = planned(RING, memory={"remat": remat}, model={"attention": {"window": window}})
    (size,) = plan.sizes
    assert size.layout

    traffic = predict_traffic(describe_workload(plan.spec), size.layout, "tpu")

    want = num_bytes * LAYERS * LENGTH // 4 * 2 * KEYS
    assert (want in [one.num_bytes for one in traffic if one.axes == ("context",)]) == (want > 0)
    assert not any(one.is_exposed for one in traffic if one.axes == ("context",))


def test_modules_that_predict_further_tokens_pass_their_keys_too() -> None:
    plan = planned(RING, model={"multiTokenPrediction": {"depth": 2}})
    (size,) = plan.sizes
    assert size.layout

    traffic = predict_traffic(describe_workload(plan.spec), size.layout, "tpu")

    found = [one.num_bytes for one in traffic if one.axes == ("context",)]
    for count in (LAYERS, 2):
        assert (2 * 3 * 2 + 3 * 4 + 2) * count * LENGTH // 4 * 2 * KEYS in found


def test_no_gradients_travel_back_where_all_layers_are_frozen() -> None:
    optimizer = {"learningRate": 1e-3, "trainable": ["head"]}
    plan = planned(RING, memory={"remat": "none"}, optimizer=optimizer)
    (size,) = plan.sizes
    assert size.layout

    traffic = predict_traffic(describe_workload(plan.spec), size.layout, "tpu")

    passed = 2 * 3 * LAYERS * LENGTH // 4 * 2 * KEYS  # forward, in bfloat16
    assert [one.num_bytes for one in traffic if one.axes == ("context",)].count(passed) == 1


def test_a_ring_over_slices_sends_over_the_slower_network() -> None:
    plan = planned(RING, slices=2)
    (size,) = plan.sizes
    assert size.layout

    traffic = predict_traffic(describe_workload(plan.spec), size.layout, "cpu")

    keys = (3 * 3 + 1) * 4 * LAYERS * LENGTH // 4 * 2 * KEYS
    assert ("dcn", keys) in [(one.network, one.num_bytes) for one in traffic]


def test_a_ring_saves_the_keys_of_other_devices_and_balances_the_scores() -> None:
    ring, gather = planned(RING), planned(GATHER)
    (with_ring,), (gathered,) = ring.sizes, gather.sizes
    assert with_ring.memory
    assert gathered.memory
    assert with_ring.layout

    others = LAYERS * LENGTH // 4 * 3 * 2 * KEYS * 2
    assert gathered.memory.activations - with_ring.memory.activations == pytest.approx(others, rel=0.01)
    flops = [count_step_flops(describe_workload(plan.spec), with_ring.layout) for plan in (ring, gather)]
    assert flops[0] < 0.9 * flops[1]
    assert [kernel.name for kernel in ring.kernels] == ["ring"]
    assert [kernel.name for kernel in gather.kernels] == ["splash"]


def test_memory_is_that_of_a_share_of_the_sequence() -> None:
    (short,), (long,) = (
        planned(RING, memory={"remat": "full"}, training=training(1, length, 1)).sizes for length in (32768, 131072)
    )
    assert short.memory
    assert long.memory

    assert long.memory.activations == 4 * short.memory.activations


def test_auto_shards_sequences_only_where_a_ring_has_two_chunks_for_each_device() -> None:
    parallelism = {"strategy": "auto"} | RING
    odd = training(1, 1026, 1)  # 2 x 513: two chunks of a device at most
    plan = plan_job(job("tpu-v5p", "2x2x1", {}, model=DEEP | {"numHeads": 1, "numKvHeads": 1}, training=odd))
    spec = plan.spec.model_copy(update={"parallelism": type(plan.spec.parallelism).model_validate(parallelism)})

    choice = choose_strategy(spec, plan.shape)

    assert choice
    assert choice.chosen.ici.context == 1


@pytest.mark.parametrize("exchange", [GATHER, RING])
@pytest.mark.parametrize("dispatch", ["capacity", "dropless"])
def test_only_groups_with_slots_must_be_inside_a_shard(exchange: dict[str, Any], dispatch: str) -> None:
    experts = {"count": 4, "perToken": 2, "dispatch": dispatch}
    (size,) = planned(exchange, model={"experts": experts}).sizes

    assert size.is_valid == (dispatch == "dropless")
