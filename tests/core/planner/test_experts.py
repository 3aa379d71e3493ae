"""Experts in the plan: what they hold, what works on a token, what they cost in memory, and how the batch is split."""

from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Experts
from trainingjob_api.sharding import count_shards
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.summary import describe_parameters, describe_plan
from trainingjob_operator.core.validation.validate_experts import (
    warn_of_dropless_without_kernel,
    warn_of_excess_capacity,
    warn_of_long_routing_groups,
    warn_of_low_capacity,
    warn_of_slots_for_all,
)

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)
FOUR = {"count": 4, "perToken": 2}

# capacity factor, group length -> tokens of a group, places of an expert
PLACES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "an even share": ({"capacity_factor": 1.0}, (64, 32)),
    "a quarter more": ({}, (64, 40)),
    "rounded up": ({"capacity_factor": 1.01}, (64, 33)),
    "room for all": ({"capacity_factor": 2.0}, (64, 64)),
    "never more": ({"capacity_factor": 100.0}, (64, 64)),
    "of a group": ({"capacity_factor": 1.0, "group_length": 16}, (16, 8)),
}


@pytest.mark.parametrize(("changes", "want"), PLACES.values(), ids=PLACES.keys())
def test_places_follow_from_the_sequence_alone(changes: dict[str, Any], want: tuple[int, int]) -> None:
    experts = Experts(count=4, per_token=2, **changes)

    assert (experts.group_size(64), experts.capacity(64)) == want


def test_mixtral_has_its_published_numbers_of_parameters(make_spec: MakeSpec) -> None:
    shape = {"vocabSize": 32000, "embedDim": 4096, "mlpDim": 14336, "numLayers": 32}
    heads = {"numHeads": 32, "numKvHeads": 8, "headDim": 128}
    model = make_spec({"model": shape | heads | {"experts": {"count": 8, "perToken": 2}}}).model

    assert resolve(model).num_parameters == 46_702_792_704
    assert resolve(model).num_active_parameters == 12_879_925_248


def test_shared_experts_work_on_every_token(make_spec: MakeSpec) -> None:
    alone, beside = (make_spec({"model.experts": FOUR | {"shared": shared}}).model for shared in (0, 2))
    two_mlps = 2 * 2 * 3 * 64 * 192  # layers, matrices, widths

    assert resolve(beside).num_parameters - resolve(alone).num_parameters == two_mlps
    assert resolve(beside).num_active_parameters - resolve(alone).num_active_parameters == two_mlps


def test_without_experts_all_parameters_are_active(make_spec: MakeSpec) -> None:
    planned = plan_job(make_spec({}))

    assert planned.num_active_parameters == planned.num_parameters
    assert describe_parameters(planned) == "132 k parameters"


def test_plan_contains_the_active_parameters_per_token(make_spec: MakeSpec) -> None:
    planned = plan_job(make_spec({"model.experts": FOUR}))
    status = describe_plan(planned)

    assert describe_parameters(planned) == "353 k parameters · 4 experts, 206 k active"
    assert (status.parameters, status.active_parameters) == (planned.num_parameters, planned.num_active_parameters)


def test_a_device_holds_its_share_of_the_experts_and_of_all_else(make_spec: MakeSpec) -> None:
    leaves = {leaf.name: leaf for leaf in resolve(make_spec({"model.experts": FOUR}).model).tensors}
    degrees = ONE | {"expert": 2, "fsdp": 2, "tensor": 2}
    gate, query = leaves["layers.mlp.gate"], leaves["layers.attention.query"]

    assert gate.shard_size(count_shards(degrees)) * 8 == gate.size
    assert query.shard_size(count_shards(degrees)) * 8 == query.size
    assert gate.gathered_size(count_shards(degrees)) * 4 == gate.size  # experts and columns stay where they are
    assert query.gathered_size(count_shards(degrees)) * 2 == query.size  # heads do


def test_the_axis_expert_splits_the_batch(make_spec: MakeSpec) -> None:
    planned = plan_job(make_spec({"model.experts": FOUR, "parallelism.ici": {"expert": 2, "fsdp": 2}}))

    assert planned.layout(1).batch_shards == 4
    assert planned.layout(1).rows_per_shard == 2


def test_places_and_the_way_there_take_memory(make_spec: MakeSpec) -> None:
    kept = {
        factor: estimate_device_memory(
            make_spec({"model.experts": FOUR | {"capacityFactor": factor}}), ONE
        ).residuals_per_sequence
        for factor in (1, 2)
    }
    dense = estimate_device_memory(make_spec({}), ONE).residuals_per_sequence

    assert dense < kept[1] < kept[2]


def test_shorter_groups_have_a_shorter_way(make_spec: MakeSpec) -> None:
    long, short = (
        estimate_device_memory(make_spec({"model.experts": FOUR | {"capacityFactor": 1, "groupLength": length}}), ONE)
        for length in (64, 16)
    )

    assert (
        long.residuals_per_sequence - short.residuals_per_sequence == 2 * 64 * (4 * 32 - 4 * 8) * 4
    )  # layers, tokens, places, bytes


def test_shared_experts_save_as_much_as_other_mlps(make_spec: MakeSpec) -> None:
    alone, beside = (estimate_device_memory(make_spec({"model.experts": FOUR | {"shared": n}}), ONE) for n in (0, 1))

    assert beside.residuals_per_sequence - alone.residuals_per_sequence == 2 * 64 * 6 * 4 * 192


DROPLESS = FOUR | {"dispatch": "dropless"}
"""Two of four experts for each token, in rows without capacity."""


def test_dropless_experts_cost_what_their_tokens_cost(make_spec: MakeSpec) -> None:
    dense, all_slots, dropless = (
        next(iter(resolve(make_spec({"model.experts": experts} if experts else {}).model).blocks))
        for experts in (None, FOUR | {"capacityFactor": 2}, DROPLESS)
    )
    shard = Shard(64, 4, dict(ONE))
    mlp, router, scores = 3 * 64 * 192, 64 * 4, dense.flops(shard).forward - 2 * 3 * 64 * 192

    assert dropless.flops(shard).forward == scores + 2 * (2 * mlp + router)
    assert all_slots.flops(shard).forward > scores + 2 * (4 * mlp + router)


def test_dropless_experts_have_memory_for_all_tokens_along_the_axis(make_spec: MakeSpec) -> None:
    (block,) = resolve(make_spec({"model.experts": DROPLESS}).model).blocks
    alone, four = (block.mlp.saved_bytes(Shard(64, 4, ONE | {"expert": expert})) for expert in (1, 4))
    routing = 4 * 4 * 4

    assert four - routing == 4 * (alone - routing)


def test_dropless_experts_gather_tokens_along_the_axis(make_spec: MakeSpec) -> None:
    (block,) = resolve(make_spec({"model.experts": DROPLESS | {"shared": 1}}).model).blocks
    traffic = block.mlp.traffic(64)

    assert traffic.expert_slots == 0
    assert (traffic.gathered_tokens, traffic.gathered_sums, traffic.tensor_sums) == (1.5, 2, 4)


CAPACITIES: list[dict[str, Any]] = [{"capacityFactor": 0.5}, {"capacityFactor": 9}, {"groupLength": 64}]


@pytest.mark.parametrize("changes", CAPACITIES)
def test_only_capacity_slots_are_warned_of(make_spec: MakeSpec, changes: dict[str, Any]) -> None:
    warnings = (warn_of_excess_capacity, warn_of_low_capacity, warn_of_long_routing_groups)

    def count(experts: dict[str, Any]) -> int:
        spec = make_spec({"model.experts": experts | changes, "model.mlpDim": 16})
        return sum(len(list(warn(spec))) for warn in warnings)

    assert count(DROPLESS) == 0
    assert count(FOUR) > 0


def test_the_plan_names_the_kernel_of_the_experts(make_spec: MakeSpec) -> None:
    names = {
        experts.get("dispatch"): [
            (one.part, one.name) for one in plan_job(make_spec({"model.experts": experts})).kernels
        ]
        for experts in (FOUR, DROPLESS)
    }

    attention = ("attention", "plain")
    assert names == {None: [attention, ("experts", "one_hot")], "dropless": [attention, ("experts", "ragged_dot")]}


EIGHT = {"count": 8, "perToken": 2}
ADVICE: dict[str, tuple[tuple[str, ...], ...]] = {
    "tpu-v5e": (("dropless",), ()),
    "nvidia-h100": (("2",), ("capacity",)),
    "a-gpu-of-the-administrator": (("2",), ("capacity",)),
    "cpu": ((), ()),
}
"""Advice for experts with slots for all tokens, and for dropless ones."""


@pytest.mark.parametrize("accelerator", ADVICE)
def test_dropless_is_advised_only_where_it_has_a_kernel(make_spec: MakeSpec, accelerator: str) -> None:
    def advise(changes: dict[str, Any]) -> tuple[str, ...]:
        spec = make_spec({"model.experts": EIGHT | changes, "slices.accelerator": accelerator})
        warnings = (*warn_of_slots_for_all(spec), *warn_of_dropless_without_kernel(spec))
        return tuple(value for warning in warnings for value in warning.nearest)

    assert (advise({"capacityFactor": 4}), advise({"dispatch": "dropless"})) == ADVICE[accelerator]
    assert advise({"capacityFactor": 2}) == ()
