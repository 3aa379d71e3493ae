"""The ConfigMap: what the trainer reads is what the operator planned."""

import kubernetes_validate
import pytest

from tests.corpus.cases import WASTEFUL, load_cases
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout, RunConfig
from trainingjob_operator.render.configmap import render_config_map

LAYOUT = Layout(
    num_slices=2,
    hosts_per_slice=2,
    devices_per_host=2,
    ici=AxisDegrees(fsdp=4),
    dcn=AxisDegrees(data=2),
    rows_per_shard=1,
    accumulation=1,
    padding_rows=0,
)


def test_the_trainer_reads_the_very_config(job, settings, cpu_plan) -> None:
    config = RunConfig(job=job, spec=cpu_plan().spec, accelerator_platform="cpu", layouts=(LAYOUT,))

    manifest = render_config_map(config, settings)

    kubernetes_validate.validate(manifest, desired_version="1.36", strict=True)
    assert RunConfig.model_validate_json(manifest["data"]["run.json"]) == config
    assert manifest["data"]["ca.crt"] == settings.ca_pem
    assert manifest["metadata"]["name"].startswith("tiny-")
    assert manifest["metadata"]["namespace"] == "research"
    assert manifest["metadata"]["labels"]["trainingjob.dev/job-uid"] == job.uid
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == job.uid


LEGAL = [case for case in load_cases() if case.file == WASTEFUL]


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: case.name)
def test_omitted_values_are_the_trainer_s_defaults(case, job, settings) -> None:
    spec = parse_spec(case.job["spec"]).spec
    assert spec
    config = RunConfig(job=job, spec=spec, accelerator_platform="cpu", layouts=(LAYOUT,))

    written = render_config_map(config, settings)["data"]["run.json"]

    assert RunConfig.model_validate_json(written) == config


def test_unset_field_is_not_written(job, settings, cpu_plan) -> None:
    config = RunConfig(job=job, spec=cpu_plan().spec, accelerator_platform="cpu", layouts=(LAYOUT,))

    assert "failAfter" not in render_config_map(config, settings)["data"]["run.json"]
