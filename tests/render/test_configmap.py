"""The ConfigMaps: what the trainer reads is what the operator planned, and pods mount exactly that."""

from dataclasses import replace

import kubernetes_validate
import pytest

from tests.corpus.cases import WASTEFUL, load_cases
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout, RunConfig
from trainingjob_operator.core.config_maps import revision_of
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.render.configmap import render_ca_config_map, render_config_map
from trainingjob_operator.render.jobset import render_base_jobset

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
    assert manifest["immutable"] is True
    assert revision_of(manifest, job.name, job.uid) == 1
    assert revision_of(render_config_map(config, settings, 12), job.name, job.uid) == 12
    assert manifest["metadata"]["namespace"] == "research"
    assert manifest["metadata"]["labels"]["trainingjob.dev/job-uid"] == job.uid
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == job.uid


def list_mounted(jobset: Manifest) -> list[str]:
    (replicated,) = jobset["spec"]["replicatedJobs"]
    volumes = replicated["template"]["spec"]["template"]["spec"]["volumes"]
    sources = next(volume["projected"]["sources"] for volume in volumes if volume["name"] == "config")
    return [source["configMap"]["name"] for source in sources]


def test_pods_mount_the_config_map_of_their_content(job, settings, cpu_plan) -> None:
    first = render_config_map(build_run_config(job, cpu_plan()), settings)["metadata"]["name"]

    assert list_mounted(render_base_jobset(job, cpu_plan(), settings)) == [first, "trainingjob-ca"]
    later = replace(settings, config_map="later", ca_pem="")
    assert list_mounted(render_base_jobset(job, cpu_plan(), later)) == ["later"]


def test_the_certificates_of_a_namespace_are_shared(settings) -> None:
    manifest = render_ca_config_map("research", settings.ca_pem)

    kubernetes_validate.validate(manifest, desired_version="1.36", strict=True)
    assert manifest["data"] == {"ca.crt": settings.ca_pem}
    assert "immutable" not in manifest
    assert "ownerReferences" not in manifest["metadata"], "it outlives each job of the namespace"


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
