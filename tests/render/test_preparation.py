"""The Job of the preparation phase: the pods of hosts, without accelerators, and as safe."""

from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest

from trainingjob_api.spec.data import Prepare
from trainingjob_operator.cli.yaml_output import to_yaml
from trainingjob_operator.render.jobset import render_base_jobset
from trainingjob_operator.render.pod_policy import check_preparation
from trainingjob_operator.render.preparation_job import render_preparation
from trainingjob_operator.shell.added_profiles import read_profiles

GOLDEN = Path(__file__).parents[1] / "golden/manifests/preparation.yaml"
PREPARE = Prepare.model_validate({"parallelism": 3, "resources": {"cpu": "8", "memory": "16Gi"}})
RUNTIME = {
    "imagePullSecrets": ["registry"],
    "serviceAccountName": "reader",
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}],
}
RDMA = {"resources": {"limits": {"rdma/hca": "1"}}}
SCHEDULING = {
    "queueName": "research",
    "priorityClassName": "high",
    "nodeSelector": {"pool": "tpu"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
}


@pytest.fixture
def manifest(job, settings, tpu_plan) -> dict:
    return render_preparation(job, tpu_plan(runtime=RUNTIME, scheduling=SCHEDULING), settings, PREPARE)


def test_the_job_renders_as_its_golden_file(manifest, golden) -> None:
    golden(GOLDEN, to_yaml(manifest))


def test_its_pods_may_be_created(manifest) -> None:
    assert check_preparation(manifest) == []


def test_its_pods_have_the_users_of_the_profile_and_no_devices(job, settings, tpu_plan) -> None:
    table = read_profiles({"here": {"from": "openshift", "container": RDMA, "network": 1e9}}, ())
    plan = tpu_plan(runtime=RUNTIME)
    plan = replace(plan, shape=replace(plan.shape, profile=table.profiles[0]))

    manifest = render_preparation(job, plan, settings, PREPARE)

    pod = manifest["spec"]["template"]["spec"]
    assert pod["securityContext"].keys() & {"runAsUser", "runAsGroup", "fsGroup"} == set()
    assert "rdma" not in str(pod)
    assert check_preparation(manifest, plan.shape.profile) == []
    assert check_preparation(manifest), "other pods name the user of the trainer"


def test_kubernetes_accepts_it(manifest) -> None:
    kubernetes_validate.validate(manifest, desired_version="1.36", strict=True)


def test_its_pods_request_no_accelerator_and_avoid_no_node(manifest) -> None:
    pod = manifest["spec"]["template"]["spec"]

    wanted = {"cpu": "8", "memory": "16Gi"}
    assert pod["containers"][0]["resources"] == {"requests": wanted, "limits": wanted}
    assert "nodeSelector" not in pod
    assert pod["tolerations"][0]["key"] == "spot"
    assert not any("tpu" in str(one) for one in pod["tolerations"])


def test_its_pods_have_the_image_for_cpus(job, settings, tpu_plan) -> None:
    images = {"cpu": "registry.example/cpu:1", "tpu": "registry.example/tpu:1"}
    prepared = render_preparation(job, tpu_plan(runtime=RUNTIME), replace(settings, trainer_images=images), PREPARE)

    assert prepared["spec"]["template"]["spec"]["containers"][0]["image"] == images["cpu"]


def test_its_pods_are_as_safe_as_hosts(manifest, job, settings, tpu_plan) -> None:
    jobset = render_base_jobset(job, tpu_plan(runtime=RUNTIME, scheduling=SCHEDULING), settings)
    host = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod = manifest["spec"]["template"]["spec"]

    same = ("securityContext", "automountServiceAccountToken", "serviceAccountName", "imagePullSecrets")
    assert {key: pod[key] for key in same} == {key: host[key] for key in same}
    assert pod["containers"][0]["securityContext"] == host["containers"][0]["securityContext"]
    assert pod["containers"][0]["image"] == host["containers"][0]["image"]
    claims = [volume for volume in host["volumes"] if "persistentVolumeClaim" in volume]
    assert [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume] == claims


def test_it_waits_in_the_queue_of_the_job_and_belongs_to_it(manifest, job) -> None:
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert manifest["spec"]["template"]["metadata"]["labels"].keys() == {
        "trainingjob.dev/job",
        "trainingjob.dev/job-uid",
        "app.kubernetes.io/managed-by",
    }


def test_a_pod_with_an_accelerator_is_refused(manifest) -> None:
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"]["google.com/tpu"] = "4"
    container["securityContext"]["allowPrivilegeEscalation"] = True

    assert check_preparation(manifest) == [
        "spec.template.spec.containers[0].securityContext.allowPrivilegeEscalation: must be false",
        "spec.template.spec.containers[0].resources.limits.google.com/tpu: is not allowed",
    ]
