"""The residual stream, sharded over `tensor` along the sequence, in the plan."""

from typing import Any

import pytest

from e2e.benchmarks.compiler_cases import DEEP, job, training
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

TENSOR = 4
WIDTH, TOKENS, LAYERS = 1024, 4 * 1024, 6
"""Of the model `DEEP`, and of the sequences of a device."""


def planned(*, is_sharded: bool, accelerator: str = "tpu-v5p", **sections: Any) -> Plan:
    parallelism = {"ici": {"tensor": TENSOR}, "shardStreamOverTensor": is_sharded}
    topology = "1x4" if accelerator == "cpu" else "2x2x1"
    sections = {"model": DEEP, "training": training(4, 1024, 4), "parallelism": parallelism} | sections
    return plan_job(job(accelerator, topology, {}, **sections))


def activations(plan: Plan) -> int:
    (size,) = plan.sizes
    assert size.memory
    return size.memory.activations


def traffic(plan: Plan) -> dict[Any, int]:
    (size,) = plan.sizes
    assert size.layout
    return dict(sum_by_axes(predict_traffic(describe_workload(plan.spec), size.layout, plan.shape.platform)))


@pytest.mark.parametrize(
    ("remat", "bytes_per_feature"),
    [("full", 2), ("none", 2 * (3 * 4 + 2))],  # the input of a layer; two norms
)
def test_a_device_saves_its_share_of_the_stream(remat: str, bytes_per_feature: int) -> None:
    whole, shared = (activations(planned(is_sharded=one, memory={"remat": remat})) for one in (False, True))

    assert whole - shared == LAYERS * TOKENS * WIDTH * bytes_per_feature * (TENSOR - 1) // TENSOR


def test_a_tpu_sends_as_much() -> None:
    assert traffic(planned(is_sharded=True)) == traffic(planned(is_sharded=False))
