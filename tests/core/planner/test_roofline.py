"""The roofline of a step: the counted work, its bound, and accelerators without rates."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.benchmarks.compiler_cases import DEEP, WIDE, job, training
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.program import Program
from trainingjob_operator.core.planner.flops import count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.interconnect import axis_bandwidths
from trainingjob_operator.core.planner.plan import Plan, Rates, SliceShape
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import Roofline, knows_rates, measure_mfu, predict_sizes, predict_step
from trainingjob_operator.core.planner.strategy import choose_strategy
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

BATCH = training(64, 1024, 4)


def planned(accelerator: str, topology: str, ici: dict[str, int], **sections: Any) -> Plan:
    return plan_job(job(accelerator, topology, ici, **{"model": WIDE, "training": BATCH} | sections))


def predicted(accelerator: str, topology: str, ici: dict[str, int], **sections: Any) -> Roofline:
    (found,) = predict_sizes(planned(accelerator, topology, ici, **sections)).values()
    return found


def traffic_of(plan: Plan) -> dict[tuple[str, tuple[str, ...]], int]:
    (size,) = plan.sizes
    assert size.layout
    return dict(sum_by_axes(predict_traffic(describe_workload(plan.spec), size.layout, plan.shape.platform)))


def flops_of(plan: Plan) -> int:
    (size,) = plan.sizes
    assert size.layout
    return count_step_flops(describe_workload(plan.spec), size.layout)


def test_a_token_s_useful_operations_are_six_a_parameter_and_half_of_the_scores() -> None:
    spec = job("cpu", "1x1", {}, model=WIDE, training=BATCH)
    table = 32768 * 1024

    want = 6 * (resolve(spec.model).num_parameters - table) + 6 * 4 * 1024 * 8 * 128
    assert count_useful_flops(describe_workload(spec)) == want


def test_a_tied_table_is_counted_as_the_head() -> None:
    apart, tied = (
        count_useful_flops(describe_workload(job("cpu", "1x1", {}, model=model, training=BATCH)))
        for model in (WIDE, WIDE | {"tieEmbeddings": True})
    )

    assert apart == tied


def test_only_the_experts_of_a_token_are_useful() -> None:
    two, four = (
        count_useful_flops(
            describe_workload(
                job("cpu", "1x1", {}, model=DEEP | {"experts": {"count": n, "perToken": 2}}, training=BATCH)
            )
        )
        for n in (2, 4)
    )

    assert four - two == 6 * 6 * 1024 * 2  # six layers, a router that has two columns more


def test_idle_stages_work_too() -> None:
    stages = {"pipeline": {"microbatches": 8}, "ici": {"fsdp": 2, "stage": 2}, "dcn": {"data": -1}}
    flat = planned("tpu-v5p", "2x2x1", {"fsdp": -1})
    staged = planned("tpu-v5p", "2x2x1", {}, parallelism=stages)

    head = 6 * 1024 * 32768 * 64 * 1024 // 4
    assert (flops_of(staged) - head) / (flops_of(flat) - head) == pytest.approx(9 / 8)


def test_experts_cost_the_ways_to_them() -> None:
    experts = {"count": 4, "perToken": 1, "capacityFactor": 4}
    one = planned("cpu", "1x1", {}, model=DEEP, training=training(1, 256, 1))
    four = planned("cpu", "1x1", {}, model=DEEP | {"experts": experts}, training=training(1, 256, 1))

    router, places = 6 * 1024 * 4, 4 * 256
    mlp = 3 * 6 * 1024 * 4096
    assert flops_of(four) - flops_of(one) == 256 * 6 * (router + 3 * mlp + 8 * places * 1024)


def shape_of(accelerator: str, topology: str) -> SliceShape:
    shape = BUILTIN.find_shape(accelerator, topology)
    assert shape
    return shape


@pytest.mark.parametrize(
    ("accelerator", "topology", "ici", "links"),
    [
        ("tpu-v5p", "4x4x4", {"fsdp": 16, "tensor": 4}, {"tensor": 2, "fsdp": 4}),
        ("tpu-v5p", "2x2x4", {"fsdp": 16}, {"fsdp": 3}),
        ("tpu-v5p", "2x2x2", {"fsdp": 8}, {"fsdp": 2}),
        ("tpu-v5e", "2x2", {"fsdp": 2, "tensor": 2}, {"tensor": 1, "fsdp": 1}),
        ("tpu-v7x", "4x4x4", {"fsdp": 16, "tensor": 8}, {"tensor": 2, "fsdp": 2}),
        ("tpu-v7x", "2x2x2", {"fsdp": 16}, {"fsdp": 2}),
        ("nvidia-h100", "8", {"fsdp": 4, "tensor": 2}, {"tensor": 18, "fsdp": 18}),
    ],
    ids=[
        "rings both ways",
        "open dims",
        "one ring",
        "parts of one ring",
        "links that two devices share",
        "one ring of two devices per chip",
        "behind switches",
    ],
)
def test_an_axis_has_the_links_of_its_dims(
    accelerator: str, topology: str, ici: dict[str, int], links: dict[str, int]
) -> None:
    shape = shape_of(accelerator, topology)

    rates = axis_bandwidths(shape, AxisDegrees(**ici))

    assert rates == {axis: number * shape.rates.link for axis, number in links.items()}


def test_a_step_waits_for_sums_over_tensor_and_hides_gathers() -> None:
    gathered, summed = (predicted("tpu-v5p", "2x2x2", {axis: -1}) for axis in ("fsdp", "data"))
    split = predicted("tpu-v5p", "2x2x2", {"fsdp": 2, "tensor": 4})

    assert gathered.exposed_seconds == 0
    assert gathered.seconds == max(gathered.matmul_seconds, gathered.memory_seconds, gathered.overlapped_seconds)
    assert summed.overlapped_seconds == 0
    assert summed.exposed_seconds > 0
    assert split.exposed_seconds > 0
    assert split.seconds == pytest.approx(
        max(split.matmul_seconds, split.memory_seconds, split.overlapped_seconds) + split.exposed_seconds
    )


def test_utilisation_is_useful_work_by_what_the_peak_allows() -> None:
    plan = planned("tpu-v5p", "2x2x2", {"fsdp": -1})
    (roofline,) = predict_sizes(plan).values()
    useful = count_useful_flops(describe_workload(plan.spec)) * plan.tokens_per_step

    assert roofline.mfu == pytest.approx(useful / (8 * 459e12 * roofline.seconds))
    assert roofline.flops == flops_of(plan)


def test_measured_speed_has_the_utilisation_of_the_roofline_at_that_speed() -> None:
    plan = planned("tpu-v5p", "2x2x2", {"fsdp": -1})
    (roofline,) = predict_sizes(plan).values()

    assert measure_mfu(plan.spec, plan.shape, 1, plan.tokens_per_step / roofline.seconds) == pytest.approx(roofline.mfu)


def test_only_a_program_knows_the_flops_of_its_steps() -> None:
    plan = planned("tpu-v5p", "2x2x2", {"fsdp": -1})
    spec = plan.spec.model_copy(update={"program": Program(command=("train",))})

    assert measure_mfu(spec, plan.shape, 1, 1000.0) is None


def test_computing_again_takes_longer_and_is_no_more_useful() -> None:
    none, full = (predicted("tpu-v5p", "2x2x2", {"fsdp": -1}, memory={"remat": remat}) for remat in ("none", "full"))

    assert full.matmul_seconds > none.matmul_seconds
    assert full.seconds > none.seconds
    assert full.mfu < none.mfu


def test_float32_is_held_against_its_own_peak() -> None:
    short = training(64, 256, 4)  # cuDNN has no attention in float32
    fast, slow = (
        predicted("nvidia-h100", "8", {"fsdp": -1}, precision={"compute": kind}, training=short)
        for kind in ("bfloat16", "float32")
    )

    assert slow.matmul_seconds == pytest.approx(2 * fast.matmul_seconds, rel=0.01)


def test_slices_speak_over_the_slow_network() -> None:
    alone = predicted("tpu-v5p", "2x2x2", {"fsdp": -1})
    several = predicted("tpu-v5p", "2x2x2", {"fsdp": -1}, slices=2)

    assert alone.dcn_bytes == 0
    assert several.dcn_bytes > 0
    assert several.exposed_seconds == pytest.approx(several.dcn_bytes / (50e9 / 8))


def test_without_rates_there_is_no_roofline() -> None:
    assert predict_sizes(planned("cpu", "1x8", {"fsdp": -1}, training=training(64, 64, 1))) == {}


@pytest.mark.parametrize(
    ("ici", "want"),
    [
        ({"fsdp": 2, "context": 2}, {("context",), ("fsdp",), ("fsdp", "context")}),
        ({"fsdp": 2, "stage": 2}, {("fsdp",), ("stage",)}),
        ({"expert": 4}, {("expert",)}),
        ({"fsdp": 2, "tensor": 2}, {("fsdp",), ("tensor",), ("fsdp", "tensor")}),
    ],
    ids=["context", "stage", "expert", "tensor"],
)
@pytest.mark.parametrize("accelerator", ["tpu-v5p", "cpu"])
def test_traffic_goes_along_the_axes_that_are_split(
    accelerator: str, ici: dict[str, int], want: set[tuple[str, ...]]
) -> None:
    experts = {"experts": {"count": 8, "perToken": 2}} if "expert" in ici else {}
    topology = "1x4" if accelerator == "cpu" else "2x2x1"
    if accelerator == "cpu":
        want = want - {("fsdp", "tensor")}

    plan = planned(accelerator, topology, ici, model=DEEP | experts, memory={"remat": "full"})

    assert {axes for _, axes in traffic_of(plan)} == want


def test_stages_in_different_slices_speak_over_the_slow_network() -> None:
    parallelism = {"ici": {"fsdp": -1}, "dcn": {"stage": -1}}

    found = traffic_of(planned("tpu-v5p", "2x2x1", {}, slices=2, parallelism=parallelism))

    assert set(found) == {("ici", ("fsdp",)), ("dcn", ("stage",))}


def test_parameters_may_be_split_over_slices() -> None:
    parallelism = {"ici": {"fsdp": -1}, "dcn": {"fsdp": -1}}

    found = traffic_of(planned("tpu-v5p", "2x2x1", {}, slices=2, parallelism=parallelism))

    assert set(found) == {("ici", ("fsdp",)), ("dcn", ("fsdp",))}


def test_gpus_send_no_more_than_they_must() -> None:
    tpu, gpu = (
        traffic_of(planned(accelerator, topology, {"fsdp": -1}))["ici", ("fsdp",)]
        for accelerator, topology in (("tpu-v5p", "2x2x2"), ("nvidia-h100", "8"))
    )

    assert gpu < tpu


@settings(deadline=None)
@given(
    place=st.sampled_from([("tpu-v5p", "2x2x2"), ("nvidia-h100", "8"), ("nvidia-h100", "1")]),
    zeros=st.sets(st.sampled_from([field.name for field in fields(Rates)])),
    num_slices=st.sampled_from((1, 2)),
    outer=st.sampled_from(("data", "fsdp", "stage")),
    compute=st.sampled_from(("bfloat16", "float32")),
)
def test_unknown_rates_give_no_estimate_and_no_error(
    place: tuple[str, str], zeros: set[str], num_slices: int, outer: str, compute: str
) -> None:
    shape = shape_of(*place)
    rated = replace(shape, rates=replace(shape.rates, **dict.fromkeys(zeros, 0.0)))
    auto = job(*place, {}, model=WIDE, training=BATCH, slices=num_slices, parallelism={"strategy": "auto"})
    mesh = {"ici": {"fsdp": -1}, "dcn": {"data": 1, outer: -1}}
    sections = {"slices": num_slices, "precision": {"compute": compute}, "parallelism": mesh}
    plan = planned(*place, {}, **sections)
    (size,) = plan.sizes
    assert size.layout

    found = predict_step(plan.spec, rated, size.layout)

    assert (found is not None) == knows_rates(plan.spec, rated, num_slices)
    assert choose_strategy(auto, rated), "a mesh is chosen without rates too"
