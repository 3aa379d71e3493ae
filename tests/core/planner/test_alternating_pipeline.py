"""Stages that run one forward and one backward pass in turn, in the plan: FLOPs, memory and traffic."""

from collections.abc import Mapping
from typing import Any

import pytest

from e2e.benchmarks.compiler_cases import ALTERNATING, DEEP, FULL, FURTHER, ROUTED, STAGES, job, training
from trainingjob_operator.core.planner.flops import count_quantized_step_flops, count_step_flops, count_visible_flops
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import Plan, SizePlan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_operator.core.validation.validate_sizes import warn_of_pipeline_bubble

GPIPE: dict[str, Any] = {"pipeline": {"schedule": "gpipe"}}
BOTH = (GPIPE, ALTERNATING)
FORWARD, HEAD_ALONE = 2, {"optimizer": {"learningRate": 0.001, "trainable": ["head"]}}
LORA: dict[str, Any] = {"lora": {"rank": 8, "alpha": 8.0, "targets": ["*"]}}


def planned(
    schedule: dict[str, Any], microbatches: int = 8, ici: Mapping[str, int] = STAGES["ici"], **sections: Any
) -> Plan:
    parallelism = {"ici": ici, "pipeline": schedule["pipeline"] | {"microbatches": microbatches}}
    parallelism |= sections.pop("parallelism", {})
    defaults = {"model": DEEP, "training": training(64, 1024, 1)}
    return plan_job(job("tpu-v5p", "2x2x1", {}, parallelism=parallelism, **defaults | sections))


def size_of(plan: Plan) -> SizePlan:
    (size,) = plan.sizes
    return size


def layer_flops(plan: Plan) -> int:
    """Return the FLOPs of a step without those of the LM head."""
    layout, workload = size_of(plan).layout, describe_workload(plan.spec)
    assert layout
    tokens = layout.rows_per_shard * 1024 * layout.accumulation * layout.microbatches
    head = FORWARD * workload.network.num_head_matmuls * 1024 * 8192 // (layout.num_stages * layout.ici.tensor)
    return count_step_flops(workload, layout) - tokens * head


def traffic_of(plan: Plan, axis: str) -> int:
    layout = size_of(plan).layout
    assert layout
    found = sum_by_axes(predict_traffic(describe_workload(plan.spec), layout, "tpu"))
    return sum(num_bytes for (_, axes), num_bytes in found.items() if axes == (axis,))


def test_the_backward_pass_runs_a_stage_forward_again() -> None:
    gpipe, alternating, repeated = (
        layer_flops(plan) for plan in (planned(GPIPE), planned(ALTERNATING), planned(ALTERNATING, memory=FULL))
    )

    assert alternating == pytest.approx(gpipe * 4 / 3, rel=1e-6)
    assert alternating < repeated < gpipe * 5 / 3


def test_stages_share_the_modules_of_further_tokens_unless_they_alternate() -> None:
    added = []
    for schedule in BOTH:
        plain, further = (layer_flops(planned(schedule, model=model)) for model in (DEEP, DEEP | FURTHER))
        added.append(further - plain)

    assert added[1] == 2 * added[0] > 0


def test_a_stage_without_a_backward_pass_runs_once() -> None:
    gpipe, alternating = (layer_flops(planned(schedule, **HEAD_ALONE)) for schedule in BOTH)

    assert alternating == gpipe


def test_quantized_matmuls_run_forward_again() -> None:
    int8 = {"precision": {"quantization": {"type": "int8"}}}
    found = []
    for schedule in BOTH:
        plan = planned(schedule, **int8)
        layout = size_of(plan).layout
        assert layout
        found.append(count_quantized_step_flops(describe_workload(plan.spec), layout))

    assert found[1] / found[0] == pytest.approx(3 / 2)


def test_a_kernel_that_the_compiler_does_not_show_runs_forward_again() -> None:
    hidden = []
    for schedule in BOTH:
        plan = planned(schedule, training=training(64, 4096, 1))
        layout, workload = size_of(plan).layout, describe_workload(plan.spec)
        assert layout
        hidden.append(count_step_flops(workload, layout) - count_visible_flops(workload, layout))

    assert hidden[1] > hidden[0]


def test_memory_does_not_grow_with_the_microbatches() -> None:
    few, many = (size_of(planned(ALTERNATING, number)).memory for number in (4, 32))
    gpipe = [size_of(planned(GPIPE, number)).memory for number in (4, 32)]
    assert few
    assert many
    assert gpipe[0]
    assert gpipe[1]

    assert few.activations == many.activations < gpipe[0].activations < gpipe[1].activations


def test_memory_holds_the_inputs_of_a_stage_and_the_activations_of_one_microbatch() -> None:
    plan = planned(ALTERNATING)
    layout = size_of(plan).layout
    assert layout
    device = estimate_device_memory(plan.spec, combine_degrees(layout.ici, layout.dcn))

    stream = 1024 * 1024 * 2
    assert device.kept_inputs_per_sequence == 3 * stream
    assert device.estimate(2, 1).activations == 2 * (device.residuals_per_sequence + 3 * stream)
    enough = int(device.estimate(5, 1).total / 0.92) + 1
    assert device.max_sequences(enough, 1) == 5


def test_activations_of_further_tokens_are_free_before_layers_run_backward() -> None:
    more = []
    for schedule in BOTH:
        plain, further = (size_of(planned(schedule, model=model)).memory for model in (DEEP, DEEP | FURTHER))
        assert plain
        assert further
        more.append(further.activations - plain.activations)

    assert more[0] > more[1] == 0


@pytest.mark.parametrize(("schedule", "is_more"), [(GPIPE, False), (ALTERNATING, True)])
def test_one_accumulation_step_sums_gradients_over_ticks_alone(schedule: dict[str, Any], is_more: bool) -> None:
    plan = planned(schedule)
    layout = size_of(plan).layout
    assert layout
    device = estimate_device_memory(plan.spec, combine_degrees(layout.ici, layout.dcn))
    several, one = (device.estimate(2, 1, accumulates=accumulates).temporaries for accumulates in (True, False))

    assert several - one == is_more * device.params


def test_stages_share_the_logits_of_a_microbatch_if_they_divide_the_vocabulary() -> None:
    shared, whole = (planned(ALTERNATING, model=DEEP | {"vocabSize": size}) for size in (8192, 8193))
    plans = [size_of(plan) for plan in (shared, whole)]
    flops = []
    for plan, size in zip((shared, whole), plans, strict=True):
        assert size.layout
        flops.append(count_step_flops(describe_workload(plan.spec), size.layout))

    assert flops[1] - flops[0] == pytest.approx(64 // 2 * 1024 * 6 * 1024 * 8192 / 2, rel=1e-3)
    assert plans[0].memory
    assert plans[1].memory
    assert plans[0].memory.temporaries < plans[1].memory.temporaries
    # Without a split, the gradients of the matrix need no gather.
    assert traffic_of(shared, "stage") > traffic_of(whole, "stage")


def test_stages_gather_no_gradients_of_a_frozen_head() -> None:
    frozen = {"optimizer": {"learningRate": 0.001, "trainable": ["layers.*"]}}

    assert traffic_of(planned(ALTERNATING, **frozen), "stage") < traffic_of(planned(ALTERNATING), "stage")


SENT: dict[str, tuple[str, dict[str, Any]]] = {
    "parameters": ("fsdp", {"memory": {"remat": "none"}}),
    "hidden states over tensor": ("tensor", {"ici": {"stage": 2, "tensor": 2}}),
    "tokens to experts": ("expert", {"ici": {"stage": 2, "expert": 2}, "model": ROUTED}),
    "keys": ("context", {"ici": {"stage": 2, "context": 2}}),
    "keys along a ring": (
        "context",
        {"ici": {"stage": 2, "context": 2}, "parallelism": {"context": {"exchange": "ring"}}},
    ),
    "inner features of adapters": ("tensor", {"ici": {"stage": 2, "tensor": 2}} | LORA),
}


@pytest.mark.parametrize(("axis", "sections"), SENT.values(), ids=SENT)
def test_a_stage_that_runs_again_sends_again(axis: str, sections: dict[str, Any]) -> None:
    layers = {"model": DEEP | {"vocabSize": 64}} | sections  # almost without an LM head
    gpipe, alternating = (traffic_of(planned(schedule, 2, **layers), axis) for schedule in BOTH)

    assert alternating > 1.1 * gpipe


def test_the_roofline_reads_the_layers_again() -> None:
    (gpipe,), (alternating,) = (predict_sizes(planned(schedule)).values() for schedule in BOTH)

    assert alternating.matmul_seconds > gpipe.matmul_seconds
    assert alternating.memory_seconds > gpipe.memory_seconds


def test_the_bubble_is_that_of_gpipe() -> None:
    gpipe, alternating = (list(warn_of_pipeline_bubble(planned(schedule, 2), {})) for schedule in BOTH)

    assert gpipe == alternating != []
