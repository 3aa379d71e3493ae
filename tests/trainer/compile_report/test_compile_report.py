"""The train step of a plan, compiled without a device: what it computes, needs and sends."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from jax.experimental import topologies

from tests.support.trainer.tiny import make_layout, make_spec
from trainingjob_api.compile_report import CompileAnswer
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.compile_report.mock_devices import find_devices, name_topology


@pytest.fixture
def config(tmp_path: Path, text: Path) -> RunConfig:
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path, text))
    layouts = (make_layout(devices_per_host=2, accumulation=2),)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    return RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=layouts)


@pytest.mark.thorough
def test_a_compiled_step_has_the_products_of_the_model(config: RunConfig) -> None:
    (layout,) = config.layouts
    model, length = config.spec.model, config.spec.training.sequence_length
    heads = model.num_heads * model.head_dim
    weights = model.embed_dim * (2 * heads + 2 * model.num_kv_heads * model.head_dim + 3 * model.mlp_dim)
    weights = model.num_layers * weights + model.embed_dim * model.vocab_size
    forward = 2 * weights + 4 * length * heads * model.num_layers

    step = compile_step(config, layout)

    assert step.flops == 3 * forward * length * layout.rows_per_shard * layout.accumulation
    assert step.temporaries > 0
    assert step.aliased > 0
    assert {(one.network, one.axes) for one in step.collectives} == {("ici", ("fsdp",))}


@pytest.mark.slow
def test_the_program_answers_each_size_on_a_line(config: RunConfig) -> None:
    missing = config.model_copy(update={"accelerator_platform": "cuda"})

    for requested, want in ((config, ""), (missing, "only cpu and TPUs can be compiled for")):
        ended = subprocess.run(
            [sys.executable, "-m", "trainingjob_trainer.compile_report"],
            input=requested.model_dump_json(),
            capture_output=True,
            text=True,
            check=True,
        )
        (line,) = ended.stdout.splitlines()
        answer = CompileAnswer.model_validate(json.loads(line))

        assert want in answer.error
        assert bool(answer.step) is not bool(answer.error)


def test_a_slice_has_the_name_of_libtpu() -> None:
    assert name_topology("tpu-v6e", "2x2") == "v6e:2x2"
    assert name_topology("tpu-v7x", "2x2x1") == "tpu7x:2x2x1"


@pytest.mark.parametrize(("accelerator", "options"), [("v4", {"chip_config_name": "megacore"}), ("v5p", {})])
def test_a_chip_is_one_device(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, accelerator: str, options: dict[str, str]
) -> None:
    """For TPU v4, libtpu otherwise describes each of two cores as a device."""
    asked = []

    def describe(name: str, **given: object) -> SimpleNamespace:
        asked.append((name, given))
        return SimpleNamespace(devices=["device"])

    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    slices = config.spec.slices.model_copy(update={"accelerator": f"tpu-{accelerator}", "topology": "2x2x1"})
    spec = config.spec.model_copy(update={"slices": slices})
    of_tpus = config.model_copy(update={"spec": spec, "accelerator_platform": "tpu"})

    assert find_devices(of_tpus, config.layouts[0]) == ["device"]
    assert asked == [(f"{accelerator}:2x2x1", {"platform": "tpu", "num_slices": 1, **options})]
