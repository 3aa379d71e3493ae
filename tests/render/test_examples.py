"""Every example, rendered: reviewers read the diff of these goldens first."""

from pathlib import Path

import pytest
import yaml

from trainingjob_api.world import JobIdentity
from trainingjob_operator.cli.yaml_output import to_yaml
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_operator.render.configmap import render_config_map
from trainingjob_operator.render.jobset import render_jobsets
from trainingjob_operator.render.pod_policy import check_jobset

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "crds/examples").glob("*.yaml"))}


@pytest.fixture(params=EXAMPLES.values(), ids=EXAMPLES.keys())
def example(request) -> Path:
    return request.param


@pytest.fixture
def manifests(example, settings) -> list[dict]:
    document = yaml.safe_load(example.read_text())
    job = JobIdentity(
        name=document["metadata"]["name"], namespace="default", uid="00000000-0000-0000-0000-000000000001"
    )
    plan = validate_job(job.name, document["spec"]).plan
    assert plan
    return [render_config_map(build_run_config(job, plan), settings), *render_jobsets(job, plan, settings)]


def test_the_examples_of_the_documentation_are_there() -> None:
    assert {"demo", "fixed", "elastic", "tpu-v5p-4-slices", "h100-2-nodes", "tpu-v5p-experts"} <= EXAMPLES.keys()


def test_example_renders_as_its_golden_file(manifests, golden, example) -> None:
    golden(ROOT / f"tests/golden/manifests/{example.stem}.yaml", to_yaml(*manifests))


def test_an_example_s_pods_may_be_created(manifests) -> None:
    assert [line for one in manifests if one["kind"] == "JobSet" for line in check_jobset(one)] == []
