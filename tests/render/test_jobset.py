"""JobSets: one per slice, and the settings that leave the operator's decisions to the operator."""

import json

import kubernetes_validate
import pytest

from trainingjob_operator.render.jobset import render_base_jobset, render_jobsets, render_slice_jobset
from trainingjob_operator.render.node_preference import NodePreference
from trainingjob_operator.render.pod_policy import check_jobset
from trainingjob_operator.render.render_settings import RenderSettings

ELASTIC = {"accelerator": "cpu", "topology": "2x2", "min": 2, "max": 4}
OFFSET = "trainingjob.dev/slice-offset"


def test_the_base_holds_the_fewest_slices_and_each_other_slice_is_a_jobset(job, settings, cpu_plan) -> None:
    jobsets = render_jobsets(job, cpu_plan(slices=ELASTIC), settings)

    shown = [
        (one["metadata"]["name"], one["spec"]["replicatedJobs"][0]["replicas"], one["metadata"]["labels"][OFFSET])
        for one in jobsets
    ]
    base = shown[0][0]
    assert base.startswith("tiny-")
    assert shown == [(base, 2, "0"), (f"{base}-x2", 1, "2"), (f"{base}-x3", 1, "3")]


def test_recreated_slice_avoids_excluded_nodes(job, settings, cpu_plan) -> None:
    plan = cpu_plan(slices=ELASTIC)
    jobset = render_slice_jobset(job, plan, settings, 3, NodePreference(("node-a", "node-b")))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("node-a", "node-b")]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    assert pod["spec"]["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert jobset["metadata"]["annotations"]["trainingjob.dev/avoids"] == "node-a node-b"
    assert check_jobset(jobset) == []
    others = render_slice_jobset(job, plan, settings, 3)
    assert "trainingjob.dev/avoids" not in others["metadata"]["annotations"]
    assert "affinity" not in others["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_disfavored_nodes_are_used_last(job, settings, cpu_plan) -> None:
    jobset = render_base_jobset(job, cpu_plan(), settings, NodePreference(disfavors=("node-a", "node-b")))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("node-a", "node-b")]
    preferred = [{"weight": 100, "preference": {"matchFields": fields}}]
    assert pod["spec"]["affinity"] == {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    assert check_jobset(jobset) == []
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": pod["spec"]}, "1.37")


def test_a_job_of_a_fixed_size_is_one_jobset(job, settings, cpu_plan) -> None:
    assert len(render_jobsets(job, cpu_plan(), settings)) == 1


def test_jobset_job_and_pod_carry_the_labels_by_which_children_are_found(job, settings, cpu_plan) -> None:
    jobset = render_slice_jobset(job, cpu_plan(slices=ELASTIC), settings, 3)
    child = jobset["spec"]["replicatedJobs"][0]["template"]

    labels = {
        "trainingjob.dev/job": "tiny",
        "trainingjob.dev/job-uid": job.uid,
        "app.kubernetes.io/managed-by": "trainingjob-operator",
        OFFSET: "3",
    }
    assert jobset["metadata"]["labels"] == labels
    assert child["metadata"]["labels"] == labels
    assert child["spec"]["template"]["metadata"]["labels"] == labels


def test_the_job_owns_the_jobset_and_nothing_blocks_its_deletion(job, settings, cpu_plan) -> None:
    metadata = render_base_jobset(job, cpu_plan(), settings)["metadata"]

    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "trainingjob.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "tiny",
            "uid": job.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    assert "finalizers" not in metadata


def test_a_job_never_gives_up_by_itself_and_replaces_pods_that_hang(job, settings, cpu_plan) -> None:
    jobset = render_base_jobset(job, cpu_plan(), settings)
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]

    assert spec["backoffLimit"] == 2**31 - 1
    assert spec["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "podFailurePolicy" not in spec
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (2, 2, "Indexed")
    assert "suspend" not in jobset["spec"]


LEVEL = "example.com/rack"
TOPOLOGY_REQUESTS = {
    "a slice": ("requiredTopology", 2, 3, {"podset-required-topology": LEVEL}),
    "slices of a gang": (
        "requiredTopology",
        2,
        2,
        {"podset-slice-required-topology": LEVEL, "podset-slice-size": "2"},
    ),
    "preferred": ("preferredTopology", 2, 2, {"podset-preferred-topology": LEVEL}),
}


@pytest.mark.parametrize(("field", "fewest", "most", "want"), TOPOLOGY_REQUESTS.values(), ids=TOPOLOGY_REQUESTS.keys())
def test_kueue_places_the_hosts_of_a_slice_in_one_domain(
    job, settings, cpu_plan, field: str, fewest: int, most: int, want: dict[str, str]
) -> None:
    plan = cpu_plan(slices=ELASTIC | {"min": fewest, "max": most}, scheduling={"queueName": "research", field: LEVEL})
    for jobset in render_jobsets(job, plan, settings):
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        assert pod["metadata"]["annotations"] == {f"kueue.x-k8s.io/{name}": value for name, value in want.items()}
        assert check_jobset(jobset) == []


def test_kueue_waits_as_long_as_the_job_allows(job, settings, cpu_plan) -> None:
    key = "kueue.x-k8s.io/wait-for-pods-ready"
    plan = cpu_plan(slices=ELASTIC, scheduling={"queueName": "research", "readyTimeout": "1h30m"})
    for jobset in render_jobsets(job, plan, settings):
        assert jobset["metadata"]["annotations"][key] == '{"timeoutSeconds": 5400, "recoveryTimeoutSeconds": 5400}'

    without = cpu_plan(slices=ELASTIC, scheduling={"queueName": "research"})
    assert key not in render_base_jobset(job, without, settings)["metadata"]["annotations"]


def test_slices_have_a_topology_of_their_own_where_the_plan_names_one(job, settings, cpu_plan, tpu_plan) -> None:
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"

    assert render_base_jobset(job, tpu_plan(), settings)["metadata"]["annotations"][key] == (
        "cloud.google.com/gke-nodepool"
    )
    assert key not in render_base_jobset(job, cpu_plan(), settings)["metadata"]["annotations"]


def test_hosts_of_a_tpu_slice_have_names(job, settings, cpu_plan, tpu_plan, gpu_plan) -> None:
    def has_names(plan) -> bool:
        return render_base_jobset(job, plan, settings)["spec"]["network"]["enableDNSHostnames"]

    assert has_names(tpu_plan())
    assert not has_names(gpu_plan())
    assert not has_names(cpu_plan())


QUEUES = {
    "no queue": ({}, "low", {}),
    "a queue": ({"queueName": "research"}, "", {"kueue.x-k8s.io/queue-name": "research"}),
    "a queue, elastic slices wait behind": (
        {"queueName": "research"},
        "low",
        {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "low"},
    ),
}


@pytest.mark.parametrize(("scheduling", "priority", "want"), QUEUES.values(), ids=QUEUES.keys())
def test_an_elastic_slice_queues(job, settings, cpu_plan, scheduling, priority, want) -> None:
    settings = RenderSettings(
        settings.trainer_image, settings.rendezvous_url, settings.ca_pem, elastic_workload_priority=priority
    )
    plan = cpu_plan(slices=ELASTIC, scheduling=scheduling)

    assert kueue_labels(render_slice_jobset(job, plan, settings, 2)) == want


def test_the_base_queues_at_the_priority_of_its_pods(job, settings, cpu_plan) -> None:
    plan = cpu_plan(slices=ELASTIC, scheduling={"queueName": "research"})

    assert kueue_labels(render_base_jobset(job, plan, settings)) == {"kueue.x-k8s.io/queue-name": "research"}


def kueue_labels(jobset: dict) -> dict[str, str]:
    return {key: value for key, value in jobset["metadata"]["labels"].items() if "kueue" in key}


def test_hash_changes_with_the_template_only(job, settings, cpu_plan) -> None:
    def hash_of(plan) -> str:
        return render_base_jobset(job, plan, settings)["metadata"]["annotations"]["trainingjob.dev/template-hash"]

    first = hash_of(cpu_plan())
    assert first == hash_of(cpu_plan())
    assert first == hash_of(cpu_plan(elastic={"maxRestarts": 3}))
    assert first != hash_of(cpu_plan(runtime={"image": "registry.example/other:1"}))
    assert first != hash_of(cpu_plan(slices={"accelerator": "cpu", "topology": "2x2", "count": 3}))


@pytest.mark.parametrize("make", ["cpu_plan", "tpu_plan"])
def test_child_job_is_valid_for_the_api_server(job, settings, request, make) -> None:
    jobset = render_base_jobset(job, request.getfixturevalue(make)(), settings)
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "slice", **template["metadata"]},
        "spec": template["spec"],
    }

    kubernetes_validate.validate(manifest, desired_version="1.36", strict=True)


def test_no_part_of_a_jobset_is_shared(job, settings, cpu_plan) -> None:
    """A shared part would be printed as a YAML anchor, and a change of one would change the other."""
    jobset = render_base_jobset(job, cpu_plan(), settings)

    parts = list(objects_in(jobset))
    assert len({id(part) for part in parts}) == len(parts)
    assert json.loads(json.dumps(jobset)) == jobset


def objects_in(part):
    if isinstance(part, dict):
        yield part
        for inner in part.values():
            yield from objects_in(inner)
    elif isinstance(part, list):
        yield part
        for inner in part:
            yield from objects_in(inner)
