"""Parameters that no axis of a mesh shards."""

from typing import Any

import pytest

from e2e.benchmarks.compiler_cases import DEEP, job, training
from trainingjob_api.base import AXES, Axis
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.unsharded import find_unsharded, find_unsharded_at_largest_size
from trainingjob_operator.core.validation.validate_unsharded import warn_of_unsharded_parameters

LATENT = {"queryRank": 256, "keyValueRank": 128, "ropeDim": 32, "noRopeDim": 64, "valueDim": 64}
MODEL = {name: size for name, size in DEEP.items() if name not in ("numKvHeads", "headDim")} | {
    "latentAttention": LATENT
}
DOWN = ("query_down", "key_value_down", "rope_key")
NORMS = ("attention_norm.scale", "mlp_norm.scale", "attention.query_norm.scale", "attention.key_value_norm.scale")


@pytest.mark.parametrize(
    ("ici", "large"),
    [
        ({"data": 4}, ()),
        ({"fsdp": 4}, ()),
        ({"tensor": 4}, tuple(f"layers.attention.{name}" for name in DOWN)),
        ({"data": 2, "tensor": 2}, tuple(f"layers.attention.{name}" for name in DOWN)),
    ],
)
def test_projections_to_latent_vectors_are_whole_beside_tensor_alone(
    ici: dict[str, int], large: tuple[str, ...]
) -> None:
    plan = plan_job(job("tpu-v5p", "2x2x1", ici, model=MODEL, training=training(8, 1024, 1)))
    (size,) = plan.sizes
    assert size.layout

    found = find_unsharded(plan.spec, combine_degrees(size.layout.ici, size.layout.dcn))

    norms = {"norm.scale", *(f"layers.{name}" for name in NORMS)}
    assert [one.name for one in found.tensors if one.name not in norms] == list(large)
    assert (found.share > 0.02) == bool(large)
    warnings = list(warn_of_unsharded_parameters(plan, {}))
    assert [name in str(warnings) for name in large] == [True] * len(large)
    assert bool(warnings) == bool(large)


@pytest.mark.parametrize(
    ("ici", "name", "reason"),
    [
        ({"tensor": 4}, "norm.scale", "no rule shards `norm` over an axis of this mesh"),
        ({"fsdp": 16}, "embedding", "fsdp (16) does not divide `embed` (1000)"),
        ({"fsdp": 8, "context": 2}, "embedding", "fsdp (8) x context (2) does not divide `embed` (1000)"),
    ],
)
def test_each_tensor_has_the_reason(ici: dict[Axis, int], name: str, reason: str) -> None:
    spec = job("tpu-v5p", "2x2x1", {"fsdp": 4}, model=DEEP | {"embedDim": 1000}, training=training(8, 1024, 1))

    reasons = {one.name: one.reason for one in find_unsharded(spec, dict.fromkeys(AXES, 1) | ici).tensors}

    assert reasons[name] == reason


def test_a_job_that_cannot_train_has_none() -> None:
    plan = plan_job(job("tpu-v5p", "2x2x1", {"tensor": 3}, model=DEEP, training=training(8, 1024, 1)))

    assert not plan.allowed_sizes
    assert find_unsharded_at_largest_size(plan).tensors == ()


def test_a_rule_for_nothing_leaves_the_large_tensors_whole() -> None:
    parallelism: dict[str, Any] = {"ici": {"fsdp": 4}, "rules": {"embed": []}}
    plan = plan_job(job("tpu-v5p", "2x2x1", {}, model=DEEP, training=training(8, 1024, 1), parallelism=parallelism))

    (warning,) = warn_of_unsharded_parameters(plan, {})

    assert find_unsharded_at_largest_size(plan).share == 1
    assert "100.0 % of all parameters" in warning.message
    assert "`layers.mlp.gate`" in warning.message
