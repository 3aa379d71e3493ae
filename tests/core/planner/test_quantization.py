"""Quantized matmuls in the plan: their rate, and what devices send."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.flops import count_quantized_step_flops, count_step_flops
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.plan import Plan, Rates
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import Roofline, predict_sizes, predict_step
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)
V6E = {
    "slices.accelerator": "tpu-v6e",
    "slices.topology": "2x2",
    "parallelism.ici": {"fsdp": -1},
    "precision.compute": "bfloat16",
    "memory.remat": "none",
}
GPU = V6E | {"slices.accelerator": "nvidia-h100", "slices.topology": "4"}
TENSOR = V6E | {"parallelism.ici": {"tensor": 2, "fsdp": 2}}
DROPLESS = {"model.experts": {"count": 4, "perToken": 2, "dispatch": "dropless"}}


def with_type(kind: str | None, **others: Any) -> dict[str, Any]:
    return {"precision.quantization": {"type": kind, **others}} if kind else {}


def predict(plan: Plan) -> Roofline:
    (roofline,) = predict_sizes(plan).values()
    return roofline


@pytest.mark.parametrize(("kind", "speed"), [("int8", 2.0), ("fp8", 1.0)])
def test_quantized_matmuls_have_the_rate_of_their_type(make_spec: MakeSpec, kind: str, speed: float) -> None:
    plain, plan = (plan_job(make_spec(V6E | with_type(one))) for one in (None, kind))
    (size,) = plan.sizes
    assert size.layout
    workload = describe_workload(plan.spec)

    quantized = count_quantized_step_flops(workload, size.layout)
    seconds = (count_step_flops(workload, size.layout) - quantized) / 918e12 + quantized / (speed * 918e12)
    assert 0.3 < quantized / count_step_flops(workload, size.layout) < 0.9
    assert predict(plan).matmul_seconds == pytest.approx(seconds)
    assert predict(plan).flops == predict(plain).flops


def test_mfu_is_in_relation_to_the_compute_format(make_spec: MakeSpec) -> None:
    plain, quantized = (predict(plan_job(make_spec(GPU | with_type(one)))) for one in (None, "fp8"))

    assert quantized.mfu * quantized.seconds == pytest.approx(plain.mfu * plain.seconds)


def test_a_rate_that_is_unknown_is_that_of_the_compute_format(make_spec: MakeSpec) -> None:
    plan = plan_job(make_spec(GPU | with_type("int8")))
    (size,) = plan.sizes
    assert size.layout
    plain, unknown = (
        predict_step(plan.spec, replace(plan.shape, rates=replace(plan.shape.rates, int8=rate)), size.layout)
        for rate in (plan.shape.rates.bfloat16, 0.0)
    )

    assert plain
    assert unknown
    assert unknown.matmul_seconds == pytest.approx(plain.matmul_seconds)


def test_each_type_has_its_rate() -> None:
    rates = Rates(int8=1.0, float8=2.0)

    assert (rates.quantized("int8"), rates.quantized("fp8")) == (1.0, 2.0)


def sent(make_spec: MakeSpec, changes: dict[str, Any], axis: str) -> int:
    """Return the bytes that a device sends inside the slice along an axis."""
    plan = plan_job(make_spec(changes))
    (size,) = plan.sizes
    assert size.layout
    by_axes = sum_by_axes(predict_traffic(describe_workload(plan.spec), size.layout, plan.shape.platform))
    return by_axes["ici", (axis,)]  # type: ignore[index]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize(("remat", "gathers"), [("none", 2), ("minimal", 2), ("full", 3)])
def test_narrow_matrices_are_gathered(make_spec: MakeSpec, kind: str, remat: str, gathers: int) -> None:
    """Each product has separate scales: a layer that is computed again gathers most matrices once more."""
    changes = V6E | {"parallelism.ici": {"fsdp": 2, "data": 2}, "memory.remat": remat}
    plain, found = (sent(make_spec, changes | with_type(one), "fsdp") for one in (None, kind))

    inputs, outputs = (64 * 64 + 2 * 64 * 32 + 2 * 64 * 192), 64 * 64 + 64 * 192  # in two layers, half of each
    saved = 2 * (inputs * (4 - gathers) + outputs * 2) // 2
    assert plain - found == saved


def test_excluded_matrices_are_gathered_in_the_compute_format(make_spec: MakeSpec) -> None:
    none, some, every = (
        sent(make_spec, V6E | with_type("int8", exclude=exclude), "fsdp") for exclude in (["*"], ["*.mlp.*"], [])
    )

    assert none == sent(make_spec, V6E, "fsdp")
    assert none > some > every


def test_dropless_experts_are_gathered_in_the_compute_format(make_spec: MakeSpec) -> None:
    excluded, quantized = (
        sent(make_spec, V6E | DROPLESS | with_type("int8", exclude=exclude), "fsdp") for exclude in (["*.mlp.*"], [])
    )

    assert excluded == quantized


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_sums_over_tensor_are_those_of_the_compute_format(make_spec: MakeSpec, kind: str) -> None:
    plain, found = (sent(make_spec, TENSOR | with_type(one), "tensor") for one in (None, kind))

    assert found == plain


def test_int8_products_of_dropless_experts_take_memory(make_spec: MakeSpec) -> None:
    """Each of two products and its scales have four bytes for each of 192 features of two experts."""
    changes = [V6E | DROPLESS, V6E | {"model.experts": {"count": 4, "perToken": 2}}, V6E]
    extra = []
    for change in changes:
        plain, found, narrow = (
            estimate_device_memory(make_spec(change | with_type(kind)), ONE) for kind in (None, "int8", "fp8")
        )
        assert narrow == plain
        extra.append(found.peak_points[-1].per_sequence - plain.peak_points[-1].per_sequence)

    assert extra == [64 * 2 * 192 * 4 * 4, 0, 0]
