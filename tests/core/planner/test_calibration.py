"""The expected speed against published training runs, each planned as far as its source describes it.

TPU v7x has two devices per chip, so its published figures per chip are halved.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import pytest

from trainingjob_operator.core.planner.calibration import REACHED, REACHED_BY_PLATFORM, expect
from trainingjob_operator.core.planner.flops import count_useful_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_operator.core.validation.validate import validate_job

NEAR = 0.15
"""How far the expected MFU of a run may be from the published one."""


@dataclass(frozen=True)
class Run:
    """A published run. Its speed is given in tokens/s of a device, or as an MFU that counts causal attention."""

    accelerator: str
    topology: str
    preset: str
    rows: int
    """Sequences per device and step."""
    length: int
    source: str
    tokens: float = 0.0
    mfu: float = 0.0
    slices: int = 1
    quantization: str = ""


MAXTEXT, RECIPES = "MaxText, docs/reference/models/tiering.md", "tpu-recipes, training/ironwood/README.md"
TORCHTITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
RUNS = {
    "Llama 2 7B on H100": Run(
        "nvidia-h100", "8", "llama2-7b", 2, 4096, "JAX-Toolbox, docs/frameworks/maxtext/README.md", tokens=11_361
    ),
    "Llama 3.1 70B on H200": Run(
        "nvidia-h200", "8", "llama3.1-70b", 2, 8192, "gpu-recipes, training/a3ultra", tokens=1056, slices=32
    ),
    "Llama 3.1 8B in fp8 on H100": Run(
        "nvidia-h100", "8", "llama3.1-8b", 2, 8192, "Megatron-Bridge, performance-summary.md", 14_451, 0, 1, "fp8"
    ),
    "Llama 2 70B on v5p": Run("tpu-v5p", "4x4x8", "llama2-70b", 4, 2048, MAXTEXT, mfu=0.654),
    # Published as 50.3 %, with all scores of attention instead of the causal half.
    "Llama 3.1 70B on v6e": Run("tpu-v6e", "16x16", "llama3.1-70b", 1, 8192, MAXTEXT, mfu=0.469),
    "Llama 3.1 70B on v7x": Run("tpu-v7x", "4x4x4", "llama3.1-70b", 2, 8192, RECIPES, tokens=2687 / 2),
    "Llama 3.1 70B in fp8 on v7x": Run("tpu-v7x", "4x4x4", "llama3.1-70b", 2, 8192, RECIPES, 4128 / 2, 0, 1, "fp8"),
    "Llama 3.1 405B on v7x": Run("tpu-v7x", "4x4x8", "llama3.1-405b", 1, 8192, RECIPES, mfu=0.547),
}
MISSED = {
    "Llama 3.1 8B on v6e": Run("tpu-v6e", "16x16", "llama3.1-8b", 3, 8192, MAXTEXT, tokens=7207),
    "Llama 3.1 8B by torchtitan": Run("nvidia-h100", "8", "llama3.1-8b", 1, 8192, TORCHTITAN, tokens=6667),
    "Llama 3.1 8B in fp8 by torchtitan": Run("nvidia-h100", "8", "llama3.1-8b", 1, 8192, TORCHTITAN, 8532, 0, 1, "fp8"),
}
"""Slower runs: a small model on many small chips, and GPUs with a power limit of 500 W without tuned kernels."""


def plan(run: Run) -> Plan:
    devices = prod(map(int, run.topology.split("x"))) * run.slices
    devices *= BUILTIN.accelerators_by_name[run.accelerator].devices_per_chip
    quantization = {"quantization": {"type": run.quantization}} if run.quantization else {}
    spec: dict[str, Any] = {
        "slices": {"accelerator": run.accelerator, "topology": run.topology, "count": run.slices},
        "parallelism": {"strategy": "auto"},
        "model": {"preset": run.preset},
        "data": {"train": [{"name": "text", "path": "/data/text"}]},
        "tokenizer": {"type": "tokenizers", "path": "/data/tokenizer.json"},
        "training": {"steps": 1000, "globalBatchSize": run.rows * devices, "sequenceLength": run.length},
        "optimizer": {"learningRate": 0.001},
        "precision": {"compute": "bfloat16", **quantization},
        "checkpoint": {"uri": "/data/runs"},
        "runtime": {"volumes": [{"name": "data", "claimName": "data", "mountPath": "/data"}]},
    }
    checked = validate_job("job", spec)
    assert checked.plan, checked.problems
    return checked.plan


def compare(run: Run) -> float:
    """Return the expected MFU of a run in relation to the published one."""
    planned = plan(run)
    (roofline,) = predict_sizes(planned).values()
    useful = count_useful_flops(describe_workload(planned.spec))
    published = run.mfu or run.tokens * useful / planned.shape.rates.bfloat16
    return expect(roofline, planned.shape).mfu / published


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_published_run_has_the_expected_speed(run: Run) -> None:
    assert compare(run) == pytest.approx(1, abs=NEAR)


@pytest.mark.parametrize("run", MISSED.values(), ids=MISSED.keys())
def test_some_runs_are_slower_than_expected(run: Run) -> None:
    assert compare(run) > 1 + NEAR


def test_shares_are_those_of_accelerators_of_the_table() -> None:
    assert REACHED.keys() <= BUILTIN.accelerators_by_name.keys()


def test_an_accelerator_without_published_runs_has_the_share_of_its_platform() -> None:
    known, unknown = (plan(Run(name, "8", "llama2-7b", 1, 1024, "")) for name in ("nvidia-h100", "nvidia-b200"))
    found = [expect(next(iter(predict_sizes(one).values())), one.shape) for one in (known, unknown)]

    assert [one.is_calibrated for one in found] == [True, False]
    assert found[1].reached == REACHED_BY_PLATFORM["cuda"]
