"""LoRA in the plan: adapters have gradients and state, an int8 base one byte for each number."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.planner.test_frozen import ONE, layout_of
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.flops import count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.snapshots import snapshot_bytes
from trainingjob_operator.core.planner.strategy import describe_search
from trainingjob_operator.core.planner.summary import describe_parameters
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

QUERIES = {"rank": 4, "alpha": 8, "targets": ["*.attention.query"]}
LORA = {"lora": QUERIES}
INT8 = {"lora": QUERIES | {"baseQuantization": "int8"}}
ADAPTERS = 2 * 4 * (64 + 4 * 16)


def test_only_adapters_have_gradients_and_optimizer_state(make_spec: MakeSpec) -> None:
    spec = make_spec(LORA)
    network = resolve_network(spec)

    memory = estimate_device_memory(spec, ONE)

    assert network.num_trainable_parameters == ADAPTERS
    assert network.num_parameters == resolve(spec.model).num_parameters + ADAPTERS
    assert (memory.gradients, memory.optimizer) == (4 * ADAPTERS, 8 * ADAPTERS)
    assert describe_parameters(plan_job(spec)) == "133 k parameters, 1.02 k trained"


def test_an_int8_base_has_one_byte_for_each_number_of_the_layers(make_spec: MakeSpec) -> None:
    spec = make_spec(INT8)
    model = spec.model
    outputs = 2 * (4 * 16 + 2 * 2 * 16 + 64 + 2 * 192 + 64)
    layers = 2 * 64 * (2 * 4 * 16 + 2 * 2 * 16 + 3 * 192)
    others = resolve(model).num_parameters - layers

    memory = estimate_device_memory(spec, ONE)

    assert memory.params == layers + 4 * (others + outputs + ADAPTERS)
    assert snapshot_bytes(make_spec(INT8 | {"model.mlpDim": 65536}), layout_of(fsdp=8)) < (
        snapshot_bytes(make_spec(LORA | {"model.mlpDim": 65536}), layout_of(fsdp=8)) / 3
    )


WIDTH, HIDDEN, RANK = 64, 192, 4
ATTENTION_OUTPUT = WIDTH
NORMALIZED = 2 * WIDTH  # of two norms, before their scales


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"lora": QUERIES}, RANK - NORMALIZED - WIDTH - HIDDEN - ATTENTION_OUTPUT),
        # The adapter has a copy of the result of the norm.
        ({"lora": QUERIES | {"dropout": 0.1}}, RANK - NORMALIZED - WIDTH - HIDDEN - ATTENTION_OUTPUT),
        ({"lora": QUERIES | {"targets": ["*.mlp.down"]}}, RANK - NORMALIZED - 2 * WIDTH - ATTENTION_OUTPUT),
        ({"optimizer.trainable": ["*.mlp.up", "*.attention.out"]}, -NORMALIZED - WIDTH - HIDDEN),
        ({"optimizer.trainable": ["*_norm.scale"]}, -2 * WIDTH - HIDDEN - ATTENTION_OUTPUT),
        ({"optimizer.trainable": ["*"]}, 0),
    ],
)
def test_residuals_hold_no_inputs_of_frozen_tensors(make_spec: MakeSpec, changes: dict[str, Any], values: int) -> None:
    plain, frozen = (estimate_device_memory(make_spec(one), ONE).residuals_per_sequence for one in ({}, changes))

    assert frozen - plain == 2 * 64 * 4 * values  # layers, tokens, bytes


@pytest.mark.parametrize("policy", ["none", "full", "minimal"])
def test_adapters_add_their_matmuls_to_a_frozen_model(make_spec: MakeSpec, policy: str) -> None:
    remat = {"memory.remat": policy}
    tokens, layout = 64, layout_of(fsdp=8)
    frozen = {"optimizer.trainable": ["*.attention_norm.scale"]}

    base, adapted = (count_step_flops(describe_workload(make_spec(one | remat)), layout) for one in (frozen, LORA))

    side_a, side_b = 2 * 64 * 4, 2 * 4 * 64
    repeated = {"none": 0, "full": side_a + side_b, "minimal": side_a}[policy]
    assert adapted - base == 2 * tokens * (3 * (side_a + side_b) + repeated)


def test_the_last_product_of_an_mlp_is_repeated_for_a_norm_alone(make_spec: MakeSpec) -> None:
    def repeated(placement: str) -> int:
        changes = {"model.norm": {"placement": placement}, "memory.remat": "full"}
        targets = {"lora": QUERIES | {"targets": ["*.mlp.down"]}}
        frozen = {"optimizer.trainable": ["*_norm.scale"]}
        flops = (
            count_step_flops(describe_workload(make_spec(one | changes)), layout_of(fsdp=8))
            for one in (targets, frozen)
        )
        adapted, base = flops
        return adapted - base

    assert repeated("post") - repeated("pre") == 2 * 64 * 2 * 4 * 64


def test_useful_flops_are_four_for_the_base_and_six_for_adapters(make_spec: MakeSpec) -> None:
    whole, adapted = (count_useful_flops(describe_workload(make_spec(changes))) for changes in ({}, LORA))
    base = resolve(make_spec({}).model)

    assert whole - adapted == pytest.approx(
        2 * (base.num_parameters - base.embedding.tensor.size) - 6 * ADAPTERS, rel=1e-3
    )


def test_adapters_cross_replicas_and_inner_features_cross_tensor_shards(make_spec: MakeSpec) -> None:
    def sent(changes: dict[str, Any], axis: str) -> int:
        traffic = predict_traffic(describe_workload(make_spec(changes)), layout_of(**{axis: 8}), "tpu")
        return sum_by_axes(traffic)["ici", (axis,)]

    frozen = {"optimizer.trainable": ["*.attention_norm.scale"]}
    assert sent(LORA, "data") == 2 * 4 * ADAPTERS * 7 // 8
    assert sent(LORA, "tensor") - sent(frozen, "tensor") == 2 * 2 * 64 * 4 * 4 * 7 // 8
    assert 0 < sent(LORA, "fsdp") - sent(frozen, "fsdp") < sent({}, "fsdp")


def test_a_circular_pipeline_runs_each_adapter_once_a_microbatch(make_spec: MakeSpec) -> None:
    def count_bytes(rank: int, pipeline: dict[str, Any]) -> float:
        changes = {"lora": QUERIES | {"rank": rank}, "model.numLayers": 4, "parallelism.pipeline": pipeline}
        traffic = predict_traffic(describe_workload(make_spec(changes)), layout_of(stage=2, tensor=4), "tpu")
        return sum_by_axes(traffic)["ici", ("tensor",)]

    gpipe, circular = (
        count_bytes(8, pipeline) - count_bytes(4, pipeline) for pipeline in ({}, {"schedule": "circular", "repeats": 2})
    )

    ticks, half_ticks = 2 + 1, 2 * 2 + 1  # of two microbatches on two stages
    assert circular / gpipe == pytest.approx(half_ticks / 2 / ticks)


def test_a_mesh_search_is_not_shared_by_jobs_with_other_adapters(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("cpu", "2x2")
    assert shape

    assert describe_search(make_spec(LORA), shape) != describe_search(make_spec(INT8), shape)
