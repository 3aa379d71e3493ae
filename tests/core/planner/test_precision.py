"""Number formats in the plan: bytes of gradients, moments and logits, and the rate of float32 matmuls."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_sizes

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)
TPU = {"slices.accelerator": "tpu-v5e", "slices.topology": "2x2", "parallelism.ici": {"data": -1}}
GPU = {"slices.accelerator": "nvidia-h100", "slices.topology": "8", "parallelism.ici": {"data": -1}}


@pytest.mark.parametrize(
    ("field", "part", "share"), [("gradients", "gradients", 1 / 2), ("moments", "optimizer", 3 / 4)]
)
def test_bfloat16_takes_half_the_bytes(make_spec: MakeSpec, field: str, part: str, share: float) -> None:
    """AdamW has two moments, of which the second stays float32."""
    wide, narrow = (
        estimate_device_memory(make_spec({f"precision.{field}": dtype}), ONE) for dtype in ("float32", "bfloat16")
    )

    assert getattr(narrow, part) == share * getattr(wide, part)
    assert replace(narrow, **{part: getattr(wide, part)}) == wide


def test_logits_in_bfloat16_take_less_memory(make_spec: MakeSpec) -> None:
    wide, narrow = (
        estimate_device_memory(make_spec(TPU | {"precision": {"compute": "bfloat16", "logits": dtype}}), ONE)
        for dtype in ("float32", "bfloat16")
    )

    assert narrow.logits_per_sequence * 6 == wide.logits_per_sequence * 4  # a logit and its gradient


@pytest.mark.parametrize(("slices", "costs"), [(TPU, (1, 3, 6)), (GPU, (1, 1, 8))], ids=["tpu", "gpu"])
def test_precise_matmuls_take_longer(make_spec: MakeSpec, slices: dict[str, Any], costs: tuple[int, ...]) -> None:
    seconds = []
    for matmul in ("default", "high", "highest"):
        (roofline,) = predict_sizes(plan_job(make_spec(slices | {"precision.matmul": matmul}))).values()
        seconds.append(roofline.matmul_seconds)

    assert seconds == pytest.approx([seconds[0] * cost for cost in costs])
