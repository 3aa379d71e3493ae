"""Frozen parameters in the plan: no gradients, no optimizer state, fewer FLOPs and less traffic."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.network.activations import SavedActivations
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.flops import count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.redundancy import max_losable_slices
from trainingjob_operator.core.planner.roofline import predict_step
from trainingjob_operator.core.planner.snapshots import snapshot_bytes
from trainingjob_operator.core.planner.strategy import describe_search
from trainingjob_operator.core.planner.summary import describe_parameters, describe_plan
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)
QUERIES = {"optimizer.trainable": ["*.attention.query"]}
HEAD = {"optimizer.trainable": ["head"]}
H100 = {"slices.accelerator": "nvidia-h100", "slices.topology": "8"}
EXPERTS = {"model.experts": {"count": 8, "perToken": 2}}


def layout_of(**ici: int) -> Layout:
    return Layout(
        num_slices=1,
        hosts_per_slice=1,
        devices_per_host=8,
        ici=AxisDegrees(**ici),
        dcn=AxisDegrees(),
        rows_per_shard=1,
        accumulation=1,
        padding_rows=0,
        microbatches=ici.get("stage", 1),
    )


def test_gradients_and_optimizer_state_are_those_of_trained_parameters(make_spec: MakeSpec) -> None:
    spec = make_spec(QUERIES)
    trained = resolve_network(spec).num_trainable_parameters

    whole, memory = (estimate_device_memory(one, ONE) for one in (make_spec({}), spec))

    assert trained == 2 * 64 * 4 * 16
    assert (memory.gradients, memory.optimizer) == (4 * trained, 8 * trained)
    assert memory.params == whole.params
    assert memory.estimate(1, 1).temporaries < whole.estimate(1, 1).temporaries


def test_snapshots_hold_frozen_parameters_without_state(make_spec: MakeSpec) -> None:
    large = {"model.numLayers": 8, "model.vocabSize": 262144}
    parameters = resolve(make_spec(large).model).num_parameters

    assert snapshot_bytes(make_spec(large | HEAD), layout_of(fsdp=8)) == pytest.approx(8 * parameters, rel=0.1)


def test_useful_flops_are_four_for_each_frozen_parameter_behind_a_trained_one(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    network = resolve(spec.model)
    query = network.num_parameters - sum(one.size for one in network.tensors if not one.name.endswith(".query"))
    rest = network.num_parameters - network.embedding.tensor.size - query
    attention = 6 * 64 * 2 * 4 * 16

    assert count_useful_flops(describe_workload(make_spec(QUERIES))) == pytest.approx(
        6 * query + 4 * rest + attention, abs=2 * 64
    )
    layers = rest + query - network.head_matrix.size
    assert count_useful_flops(describe_workload(make_spec(HEAD))) == pytest.approx(
        2 * layers + 4 * network.head_matrix.size + attention // 3, abs=4 * 64
    )


@pytest.mark.parametrize("changes", [{}, EXPERTS], ids=["dense", "experts"])
def test_a_step_with_frozen_matrices_needs_fewer_flops(make_spec: MakeSpec, changes: dict[str, Any]) -> None:
    def flops(more: dict[str, Any]) -> int:
        return count_step_flops(describe_workload(make_spec(changes | more)), layout_of(fsdp=8))

    assert flops(HEAD) < flops(QUERIES) < flops({})


@pytest.mark.parametrize("platform", ["tpu", "cpu"])
@pytest.mark.parametrize(
    "degrees",
    [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"context": 4, "tensor": 2}, {"data": 2, "stage": 2, "fsdp": 2}],
    ids=str,
)
def test_frozen_parameters_send_no_gradients(make_spec: MakeSpec, degrees: dict[str, int], platform: str) -> None:
    def sent(changes: dict[str, Any]) -> int:
        workload = replace(describe_workload(make_spec(changes)), is_cpu=platform == "cpu")
        return sum(sum_by_axes(predict_traffic(workload, layout_of(**degrees), platform)).values())

    assert sent(HEAD) < sent(QUERIES) < sent({})


def test_only_gradients_of_trained_parameters_cross_replicas(make_spec: MakeSpec) -> None:
    def sent(changes: dict[str, Any]) -> int:
        return sum_by_axes(predict_traffic(describe_workload(make_spec(changes)), layout_of(data=8), "tpu"))[
            "ici", ("data",)
        ]

    matrices = sum(one.size for one in resolve(make_spec({}).model).tensors if one.is_matrix)
    assert sent(QUERIES) / sent({}) == pytest.approx(2 * 64 * 4 * 16 / matrices, rel=1e-3)


def test_experts_whose_layers_are_frozen_send_tokens_forward_alone(make_spec: MakeSpec) -> None:
    def sent(changes: dict[str, Any]) -> int:
        traffic = predict_traffic(describe_workload(make_spec(EXPERTS | changes)), layout_of(expert=8), "tpu")
        return sum(one.num_bytes for one in traffic if one.is_exposed)

    assert sent(HEAD) < sent({})


def test_a_step_is_shorter_with_frozen_parameters(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    whole, queries, head = (
        predict_step(make_spec(H100 | changes), shape, layout_of(fsdp=8)) for changes in ({}, QUERIES, HEAD)
    )

    assert whole
    assert queries
    assert head
    assert head.memory_seconds < queries.memory_seconds < whole.memory_seconds
    assert head.matmul_seconds < queries.matmul_seconds < whole.matmul_seconds


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_the_heads_read_is_needed_for_their_projection_alone(make_spec: MakeSpec, is_frozen: bool) -> None:
    (block,) = resolve_network(make_spec({"slices.accelerator": "cpu"} | (QUERIES if is_frozen else {}))).blocks
    shard = Shard(128, 2, ONE)
    (read,) = (one for one in block.activations(shard) if one.name == "attentionOutput")
    projected = next(one for one in block.activations(shard) if one.name == "attentionProjection")

    def costs(*names: str) -> tuple[int, int, int]:
        saved = SavedActivations(frozenset(names))
        return (
            block.flops(shard, saved).recomputed,
            block.saved_bytes(shard, saved),
            block.saved_bytes(shard, saved) + block.backward_bytes(shard, saved),
        )

    nothing, heads, projection, both = (
        costs(*names)
        for names in ((), ("attentionOutput",), ("attentionProjection",), ("attentionOutput", "attentionProjection"))
    )
    assert (heads[0] - nothing[0], heads[1] - nothing[1]) == (-read.flops, read.num_bytes)
    assert heads[2] == nothing[2]
    assert projection[0] - nothing[0] == -projected.flops - (read.flops if is_frozen else 0)
    assert (both[0] - projection[0], both[1] - projection[1]) == (
        (0, 0) if is_frozen else (-read.flops, read.num_bytes)
    )


def test_a_frozen_model_is_not_spread_over_replicas(make_spec: MakeSpec) -> None:
    sharded = {"parallelism.shardOptimizerOverData": True}
    layout = layout_of(data=4).model_copy(update={"num_slices": 2, "devices_per_host": 4, "dcn": AxisDegrees(data=2)})

    assert max_losable_slices(make_spec(sharded), layout) == 0
    assert max_losable_slices(make_spec(sharded | {"optimizer.trainable": ["nothing"]}), layout) == 1


def test_a_mesh_search_is_not_shared_by_jobs_with_other_frozen_tensors(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape

    assert describe_search(make_spec(H100), shape) != describe_search(make_spec(H100 | QUERIES), shape)


def test_the_plan_states_the_trained_parameters(make_spec: MakeSpec) -> None:
    plan = plan_job(make_spec(QUERIES))

    assert describe_parameters(plan) == "132 k parameters, 8.19 k trained"
    assert describe_plan(plan).trainable_parameters == 8192
    assert describe_plan(plan_job(make_spec({}))).trainable_parameters == plan.num_parameters
