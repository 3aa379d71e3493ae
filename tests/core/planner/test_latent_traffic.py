"""What XLA sends for latent vectors, which all devices along `tensor` compute alike."""

import math

import pytest

from e2e.benchmarks.compiler_cases import COMPILER_CASES, LATENT, job, training
from tests.core.planner.test_compiled import RECORD
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.resolve import resolve
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload


@pytest.mark.parametrize(
    ("ici", "is_split"),
    [
        ({"fsdp": 2, "tensor": 2}, True),
        ({"fsdp": 2, "tensor": 4}, True),
        ({"fsdp": 4, "tensor": 2}, False),
        ({"data": 2, "fsdp": 2, "tensor": 2}, True),
        ({"stage": 2, "fsdp": 2, "tensor": 2}, False),
        ({"tensor": 8}, False),
    ],
    ids=str,
)
def test_matrices_of_latent_vectors_are_split_over_tensor_if_fsdp_divides_it(
    ici: dict[str, int], is_split: bool
) -> None:
    plan = plan_job(job("cpu", f"1x{math.prod(ici.values())}", ici, model=LATENT, training=training(32, 1024, 2)))
    layout = plan.sizes[0].layout
    assert layout
    traffic = predict_traffic(describe_workload(plan.spec), layout, "cpu")

    assert any(one.axes == ("fsdp", "tensor") for one in traffic) is is_split


def test_the_backward_pass_sums_gradients_of_latent_vectors() -> None:
    """Queries without a latent vector have the gradient of the input in their place."""
    found = []
    for rank in (512, None):
        ranks = LATENT["latentAttention"] | {"queryRank": rank}
        spec = job("cpu", "1x1", {}, model=LATENT | {"latentAttention": ranks}, training=training(1, 64, 1))
        (block,) = resolve(spec.model).blocks
        assert isinstance(block.attention, LatentAttention)
        found.append(block.attention.traffic(64))

    assert [one.backward_excess for one in found] == [832 / 1024 - 1, 320 / 1024]
    assert [one.separate_sums for one in found] == [256 / 1024] * 2


@pytest.mark.parametrize("row", ["v5p 2x2x1 fsdp tensor, latent attention", "cpu 1x8 fsdp tensor, latent keys"])
def test_sums_over_tensor_are_those_of_the_compiler(row: str) -> None:
    plan = plan_job(COMPILER_CASES[row])
    layout = plan.sizes[0].layout
    assert layout
    predicted = sum_by_axes(predict_traffic(describe_workload(plan.spec), layout, plan.shape.platform))
    found = sum(one["bytes"] for one in RECORD[row]["collectives"] if one["axes"] == ["tensor"])

    assert predicted["ici", ("tensor",)] == pytest.approx(found, rel=0.001)
