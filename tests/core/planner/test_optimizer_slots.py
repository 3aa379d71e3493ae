"""The state slots of an optimizer decide its memory, the size of snapshots, and the estimate of a step."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.optim import SLOTS, Slot
from trainingjob_api.sharding import count_shards
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.memory import (
    USABLE_MEMORY_SHARE,
    count_offloaded_slots,
    estimate_device_memory,
)
from trainingjob_operator.core.planner.plan import Rates
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_step, update_transfer_seconds
from trainingjob_operator.core.planner.snapshots import snapshot_bytes
from trainingjob_operator.core.planner.strategy import describe_search
from trainingjob_operator.core.planner.summary import describe_plan
from trainingjob_operator.core.planner.workload import describe_workload

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)
LAYOUT = Layout(
    num_slices=1,
    hosts_per_slice=1,
    devices_per_host=8,
    ici=AxisDegrees(fsdp=8),
    dcn=AxisDegrees(),
    rows_per_shard=1,
    accumulation=1,
    padding_rows=0,
)
SLOT_SETS: dict[str, tuple[tuple[Slot, ...], int]] = {
    "two moments": (SLOTS["adamw"], 8),
    "one": ((Slot("mu", "float32"),), 4),
    "one in bfloat16": ((Slot("mu", "bfloat16"),), 2),
    "none": ((), 0),
}
"""Slots, and their bytes for a parameter."""


@pytest.fixture(params=SLOT_SETS)
def bytes_per_parameter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    slots, num_bytes = SLOT_SETS[request.param]
    monkeypatch.setitem(SLOTS, "adamw", slots)
    return num_bytes


def test_memory_of_the_state(make_spec: MakeSpec, bytes_per_parameter: int) -> None:
    spec = make_spec({})

    memory = estimate_device_memory(spec, ONE)

    assert memory.optimizer == bytes_per_parameter * resolve(spec.model).num_parameters


def test_bytes_of_a_snapshot(make_spec: MakeSpec, bytes_per_parameter: int) -> None:
    spec = make_spec({"model.numLayers": 8, "model.vocabSize": 262144})

    parameters = resolve(spec.model).num_parameters

    assert snapshot_bytes(spec, LAYOUT) == pytest.approx((4 + bytes_per_parameter) * parameters, rel=0.05)


def test_bytes_that_an_update_moves(make_spec: MakeSpec, bytes_per_parameter: int) -> None:
    """It reads each slot and writes it."""
    spec = make_spec({"slices.accelerator": "nvidia-h100", "slices.topology": "8"})
    held = sum(tensor.shard_size(count_shards({"fsdp": 8})) for tensor in resolve(spec.model).tensors)

    moved = memory_bytes(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SLOTS, "adamw", ())
        without_slots = memory_bytes(spec)

    assert moved - without_slots == pytest.approx(2 * bytes_per_parameter * held)


def memory_bytes(spec: TrainingJobSpec) -> float:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    step = predict_step(spec, shape, LAYOUT)
    assert step
    return step.memory_seconds * shape.rates.memory


def test_lion_has_half_of_the_optimizer_state_of_adamw(make_spec: MakeSpec) -> None:
    adamw, lion = (
        estimate_device_memory(make_spec({"optimizer.type": name}), ONE).optimizer for name in ("adamw", "lion")
    )

    assert adamw == 2 * lion > 0


def test_sgd_has_an_optimizer_state_with_momentum_only(make_spec: MakeSpec) -> None:
    adamw, momentum, plain = (
        estimate_device_memory(make_spec({"optimizer": {"learningRate": 0.1} | changes}), ONE).optimizer
        for changes in ({}, {"type": "sgd", "sgd": {"momentum": 0.9}}, {"type": "sgd"})
    )

    assert (momentum, plain) == (adamw // 2, 0)


def test_adafactor_keeps_rows_and_columns_of_matrices(make_spec: MakeSpec) -> None:
    spec = make_spec(
        {
            "model.numLayers": 8,
            "model.embedDim": 512,
            "model.mlpDim": 8192,
            "optimizer": {"learningRate": 0.1, "type": "adafactor"},
        }
    )
    tensors, wanted = resolve(spec.model).tensors, 0
    for tensor in tensors:
        inputs, outputs = tensor.matrix_shape if tensor.is_matrix else (0, 0)
        is_small = min(inputs, outputs) < 128
        wanted += 4 * (tensor.size if is_small else (inputs + outputs) * (tensor.size // inputs // outputs))

    assert estimate_device_memory(spec, ONE).optimizer == wanted < sum(tensor.size for tensor in tensors)
    assert snapshot_bytes(spec, LAYOUT) == pytest.approx(4 * resolve(spec.model).num_parameters + wanted, rel=0.05)


def test_an_average_has_four_bytes_for_each_trained_parameter(make_spec: MakeSpec) -> None:
    plain, averaged, adapters = (
        make_spec({"model.numLayers": 8, "model.vocabSize": 262144} | changes)
        for changes in (
            {},
            {"optimizer.average": {}, "precision.moments": "bfloat16"},
            {"optimizer.average": {}, "lora": {"rank": 8, "alpha": 8, "targets": ["*.query"]}},
        )
    )
    size = resolve(plain.model).num_parameters
    trained = sum(tensor.size for tensor in resolve_network(adapters).tensors if tensor.is_trainable)

    assert estimate_device_memory(averaged, ONE).optimizer == (2 + 4 + 4) * size
    assert estimate_device_memory(adapters, ONE).optimizer == 12 * trained
    assert snapshot_bytes(averaged, LAYOUT) == pytest.approx(14 * size, rel=0.05)


def test_muon_keeps_one_moment_of_the_matrices_of_layers(make_spec: MakeSpec) -> None:
    sizes = {"model.numLayers": 8, "model.mlpDim": 8192, "model.embedDim": 512}
    spec = make_spec(sizes | {"optimizer": {"learningRate": 0.1, "type": "muon"}})
    tensors = resolve(spec.model).tensors
    matrices = sum(tensor.size for tensor in tensors if tensor.is_stacked and tensor.is_matrix)
    rest = sum(tensor.size for tensor in tensors) - matrices

    assert estimate_device_memory(spec, ONE).optimizer == 4 * matrices + 8 * rest
    assert snapshot_bytes(spec, LAYOUT) == pytest.approx(8 * matrices + 12 * rest, rel=0.05)


def test_the_plan_counts_the_matmuls_that_orthogonalize_updates(make_spec: MakeSpec) -> None:
    muon, few, adamw = (
        count_step_flops(describe_workload(make_spec({"optimizer": {"learningRate": 0.1} | changes})), LAYOUT)
        for changes in ({"type": "muon"}, {"type": "muon", "muon": {"newtonSchulzSteps": 1}}, {})
    )
    wanted = 0
    for tensor in resolve(make_spec({}).model).tensors:
        if tensor.is_stacked and tensor.is_matrix:
            layers, inputs = tensor.shape[0], math.prod(tensor.shape[dim] for dim in tensor.input_dims)
            rows, columns = sorted((inputs, tensor.size // layers // inputs))
            wanted += layers * 2 * (rows * columns * rows + rows * rows * rows + rows * rows * columns) // 8

    assert (few - adamw, muon - adamw) == (wanted, 5 * wanted)


def test_a_mesh_search_is_not_shared_by_optimizers_of_other_slots(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    changes = {"slices.accelerator": "nvidia-h100", "slices.topology": "8", "slices.count": 1}
    adamw, again, *others = (
        describe_search(make_spec(changes | {"optimizer": {"learningRate": 0.1} | optimizer}), shape)
        for optimizer in (
            {"average": {"decay": 0.9}},
            {"average": {}, "learningRate": 0.2},
            {},
            {"type": "lion"},
            {"type": "sgd"},
            {"type": "sgd", "sgd": {"momentum": 0.9}},
        )
    )

    assert adamw == again
    assert len({adamw, *others}) == 5


OFFLOADED = {"slices.accelerator": "nvidia-h100", "slices.topology": "8", "memory": {"offload": ["optimizer"]}}


def test_offloaded_state_leaves_the_device(make_spec: MakeSpec) -> None:
    on_device, on_host = (make_spec(OFFLOADED | changes) for changes in ({"memory": {}}, {}))
    device, host = estimate_device_memory(on_device, ONE), estimate_device_memory(on_host, ONE)
    vectors = sum(tensor.size for tensor in resolve(on_host.model).tensors if not tensor.is_matrix)

    assert host.optimizer == 8 * vectors
    assert host.offloaded_slots == device.optimizer - host.optimizer
    assert host.estimate(1, 1).host == host.offloaded_slots
    assert device.estimate(1, 1).host == device.update_bytes == 0
    assert [host.params, host.gradients, host.peak_points] == [device.params, device.gradients, device.peak_points]


def test_an_update_has_the_largest_piece_of_offloaded_state_twice(make_spec: MakeSpec) -> None:
    """A piece is a layer, or the whole embedding."""
    deep = make_spec(OFFLOADED | {"model.vocabSize": 1})
    wide = make_spec(OFFLOADED | {"model.vocabSize": 262144})
    tensors = resolve(deep.model).tensors
    layer = sum(one.size // one.shape[0] for one in tensors if one.is_stacked and one.is_matrix)
    table = 262144 * wide.model.embed_dim

    assert estimate_device_memory(deep, ONE).update_bytes == 2 * 8 * layer
    assert estimate_device_memory(wide, ONE).update_bytes == 2 * 8 * table


def test_layers_that_data_shards_come_together(make_spec: MakeSpec) -> None:
    """With a sharded optimizer, a device brings one of its layers while other devices bring theirs."""
    spec = make_spec(OFFLOADED | {"model.vocabSize": 1, "parallelism.shardOptimizerOverData": True})
    alone, spread = (estimate_device_memory(spec, ONE | {"data": degree}) for degree in (1, 2))

    assert spread.offloaded_slots == alone.offloaded_slots // 2
    assert spread.update_bytes == alone.update_bytes


def test_the_update_limits_what_fits(make_spec: MakeSpec) -> None:
    device = replace(estimate_device_memory(make_spec(OFFLOADED), ONE), update_bytes=10**9)
    state = device.params + device.gradients + device.optimizer
    least = int((state + device.update_bytes) / USABLE_MEMORY_SHARE) + 1

    assert device.max_sequences(least, 1) > 0
    assert device.max_sequences(int(least * 0.99), 1) == 0
    assert device.estimate(1, 1).total >= state + device.update_bytes


def test_offloaded_state_moves_both_ways_in_each_step(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    spec, plain = make_spec(OFFLOADED), make_spec(OFFLOADED | {"memory": {}})
    slow, fast = predict_step(spec, shape, LAYOUT), predict_step(plain, shape, LAYOUT)
    assert slow
    assert fast
    seconds = 2 * count_offloaded_slots(spec, LAYOUT) / shape.rates.host

    assert slow.exposed_seconds - fast.exposed_seconds == pytest.approx(seconds)
    assert update_transfer_seconds(plain, shape, LAYOUT) == 0
    assert update_transfer_seconds(spec, replace(shape, rates=Rates()), LAYOUT) == 0


def test_the_plan_says_where_the_state_is(make_spec: MakeSpec) -> None:
    def memory_of(changes: dict[str, Any]) -> str | None:
        memory = describe_plan(plan_job(make_spec(changes))).optimizer_memory
        return memory and memory.name

    assert memory_of(OFFLOADED) == "host"
    assert memory_of({"memory": {"offload": ["optimizer"]}}) == "device"  # cpu
    assert memory_of({}) is None
