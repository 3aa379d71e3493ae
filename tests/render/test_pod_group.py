"""PodGroups: the scheduler places all pods of a JobSet at once, where the API server serves them."""

from dataclasses import replace

import pytest

from trainingjob_operator.render.jobset import render_base_jobset, render_slice_jobset
from trainingjob_operator.render.pod_group import render_pod_group
from trainingjob_operator.render.pod_policy import check_jobset

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
    plan, served = cpu_plan(**spec), replace(settings, serves_pod_groups=True)
    plan = replace(plan, shape=replace(plan.shape, exclusive_topology=topology))
    jobset = render_slice_jobset(job, plan, served, number) if number else render_base_jobset(job, plan, served)
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    group = render_pod_group(job, plan, served, jobset)

    assert bool(group) is bool(num_pods) is ("schedulingGroup" in pod["spec"])
    assert check_jobset(jobset) == []
    if num_pods:
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": f"{jobset['metadata']['name']}-gang-{num_pods}"}
        assert group == {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
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
