"""PodGroups: the scheduler places all pods of a JobSet at once, where the API server serves them."""

import json
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest

from trainingjob_operator.cli.yaml_output import to_yaml
from trainingjob_operator.core.pod_groups import API_GROUP, KNOWN_VERSIONS
from trainingjob_operator.render.jobset import render_base_jobset, render_slice_jobset
from trainingjob_operator.render.pod_group import render_pod_group
from trainingjob_operator.render.pod_policy import check_jobset

GOLDENS = Path(__file__).parents[1] / "golden/pod_groups"
NEWEST, *_ = KNOWN_VERSIONS
SERVED_BY = {"v1alpha2": "1.36", "v1alpha3": "1.37", "v1beta1": "1.37"}
"""Release of Kubernetes whose schemas have a version of PodGroups."""
SLICES = {"accelerator": "cpu", "topology": "2x2", "min": 2, "max": 4}
CASES = {
    "the minimum of an elastic job": ({"slices": SLICES}, "", 0, 4),
    "an elastic slice": ({"slices": SLICES}, "", 3, 2),
    "host 0 of each slice, since JobSet admits the others after it": (
        {"slices": SLICES},
        "rack",
        0,
        2,
    ),
    "one host 0 is no gang": ({"slices": SLICES}, "rack", 3, 0),
    "Kueue decides": ({"slices": SLICES, "scheduling": {"queueName": "research"}}, "", 0, 0),
}


@pytest.mark.parametrize(("spec", "topology", "number", "num_pods"), CASES.values(), ids=CASES.keys())
def test_pods_and_their_group(job, settings, cpu_plan, spec, topology, number, num_pods) -> None:
    plan, served = cpu_plan(**spec), replace(settings, pod_group_version=NEWEST)
    plan = replace(plan, shape=replace(plan.shape, exclusive_topology=topology))
    jobset = render_slice_jobset(job, plan, served, number) if number else render_base_jobset(job, plan, served)
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    group = render_pod_group(job, plan, served, jobset)

    assert bool(group) is bool(num_pods) is ("schedulingGroup" in pod["spec"])
    assert check_jobset(jobset) == []
    if num_pods:
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": f"{jobset['metadata']['name']}-gang-{num_pods}"}
        assert group == {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {
                "name": f"{jobset['metadata']['name']}-gang-{num_pods}",
                "namespace": job.namespace,
                "labels": {key: jobset["metadata"]["labels"][key] for key in group["metadata"]["labels"]},
                "ownerReferences": jobset["metadata"]["ownerReferences"],
            },
            "spec": {"schedulingPolicy": {"gang": {"minCount": num_pods}}},
        }
    plain = render_base_jobset(job, plan, settings)
    assert render_pod_group(job, plan, settings, plain) == {}
    assert "schedulingGroup" not in str(plain)


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_each_version_is_valid_and_renders_as_its_golden_file(job, settings, cpu_plan, golden, version) -> None:
    plan, served = cpu_plan(scheduling={"priorityClassName": "high"}), replace(settings, pod_group_version=version)
    jobset = render_base_jobset(job, plan, served)

    group = render_pod_group(job, plan, served, jobset)

    golden(GOLDENS / f"{version}.yaml", to_yaml(group))
    kubernetes_validate.validate(group, desired_version=SERVED_BY[version], strict=True)
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": pod["spec"]}
    kubernetes_validate.validate(manifest, desired_version=SERVED_BY[version], strict=True)


def test_every_version_with_a_schema_is_known() -> None:
    """Schemas of a later release fail here until the table has their versions."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    schemas = [json.loads(path.read_text()) for path in folder.glob("*-local-strict/podgroup-scheduling-*.json")]
    kinds = [schema["properties"]["apiVersion"]["enum"] for schema in schemas if "apiVersion" in schema["properties"]]

    assert {version for versions in kinds for version in versions} == {f"{API_GROUP}/{one}" for one in KNOWN_VERSIONS}


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_a_group_has_the_priority_of_its_pods(job, settings, cpu_plan, version) -> None:
    """The scheduler of Kubernetes 1.37 places no pods whose priority differs from that of their group."""
    served = replace(settings, pod_group_version=version)
    for scheduling, want in (({}, None), ({"priorityClassName": "high"}, "high")):
        plan = cpu_plan(scheduling=scheduling)
        jobset = render_base_jobset(job, plan, served)
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

        group = render_pod_group(job, plan, served, jobset)

        assert group["spec"].get("priorityClassName") == pod["spec"].get("priorityClassName") == want
