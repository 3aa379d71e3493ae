"""Costs of a network with several groups: the sum over its layers, in any order."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.routed_mlp import Experts, RoutedMlp
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.flops import count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.memory import DeviceMemory, estimate_workload_memory
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import Workload, describe_workload

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

LAYOUT = Layout(
    num_slices=2,
    hosts_per_slice=1,
    devices_per_host=8,
    ici=AxisDegrees(fsdp=2, context=2, tensor=2),
    dcn=AxisDegrees(data=2),
    rows_per_shard=1,
    accumulation=2,
    padding_rows=0,
)
DEGREES = dict.fromkeys(AXES, 1) | {"fsdp": 2, "context": 2, "tensor": 2}


@pytest.fixture
def workload(make_spec: MakeSpec) -> Workload:
    return describe_workload(make_spec({"model.numLayers": 4}))


def regroup(workload: Workload, *groups: Group) -> Workload:
    return replace(workload, network=replace(workload.network, groups=groups))


def measure(workload: Workload) -> list[Any]:
    traffic = sum_by_axes(predict_traffic(workload, LAYOUT, "tpu"))
    flops = count_step_flops(workload, LAYOUT), count_useful_flops(workload)
    return [estimate_workload_memory(workload, DEGREES), traffic, *flops]


@pytest.mark.parametrize("repeats", [(1, 3), (2, 2)])
def test_layers_cost_the_same_in_one_group_and_in_two(workload: Workload, repeats: tuple[int, int]) -> None:
    (group,) = workload.network.groups
    first, second = repeats

    split = regroup(workload, replace(group, repeats=first), replace(group, name="rest", repeats=second))

    assert measure(split) == measure(workload)


def test_a_pattern_of_equal_blocks_costs_as_much_as_its_layers(workload: Workload) -> None:
    (group,) = workload.network.groups

    assert measure(regroup(workload, Group("layers", group.pattern * 2, 2))) == measure(workload)


def test_dense_and_routed_layers_cost_the_sum_of_both_kinds(workload: Workload) -> None:
    (group,) = workload.network.groups
    (block,) = group.pattern
    mlp = block.mlp
    assert isinstance(mlp, DenseMlp)
    routed = replace(block, mlp=RoutedMlp(mlp.width, mlp.hidden, Experts(count=4, per_token=2), mlp.options))
    dense_group, routed_group = replace(group, repeats=2), Group("routed", (routed,), 2)

    def take(*groups: Group) -> tuple[DeviceMemory, int, Network]:
        changed = regroup(workload, *groups)
        return estimate_workload_memory(changed, DEGREES), count_step_flops(changed, LAYOUT), changed.network

    both, dense, experts = take(dense_group, routed_group), take(dense_group), take(routed_group)
    outside = take()

    assert both[0].residuals_per_sequence == dense[0].residuals_per_sequence + experts[0].residuals_per_sequence
    assert both[0].peak_points == (*dense[0].peak_points, *experts[0].peak_points[1:])
    assert both[1] + outside[1] == dense[1] + experts[1]
    assert both[2].num_parameters + outside[2].num_parameters == dense[2].num_parameters + experts[2].num_parameters
