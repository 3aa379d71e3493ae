"""Pods with profiles: each shipped one as a golden, and pods that differ from their profile are rejected."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli.yaml_output import to_yaml
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.pod_profile import PodProfile, dump_part
from trainingjob_operator.render.jobset import render_base_jobset
from trainingjob_operator.render.pod_policy import check_jobset, check_pod
from trainingjob_operator.shell.added_profiles import read_profiles
from trainingjob_operator.shell.shipped_profiles import SHIPPED

GOLDENS = Path(__file__).parents[1] / "golden/profiles"
SLICES = {
    "gke-tpu": ("tpu-v5p", "2x2x4"),
    "gke-tpu-gcsfuse": ("tpu-v6e", "4x4"),
    "gke-a3-mega": ("nvidia-h100-mega", "8"),
}
"""Slices on which the profiles are rendered; the others are for eight GPUs of NVIDIA."""


def render(name: str, row: dict[str, Any], job: Any, spec: dict[str, Any], settings: Any) -> tuple[dict, PodProfile]:
    accelerator, topology = SLICES.get(name, ("nvidia-h200", "8"))
    (profile,) = read_profiles({name: row}, BUILTIN.accelerators).profiles
    changes = {
        "slices": {"accelerator": accelerator, "topology": topology, "count": 1},
        "parallelism": {"ici": {"data": -1}},
        "training": spec["training"] | {"globalBatchSize": 64},
        "scheduling": {"podProfile": name},
    }
    plan = plan_job(TrainingJobSpec.model_validate(spec | changes), BUILTIN.with_profiles([profile]))
    return render_base_jobset(job, plan, settings), profile


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_renders_as_its_golden_file(name, job, spec, settings, golden) -> None:
    jobset, profile = render(name, {"from": name}, job, spec, settings)
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    golden(GOLDENS / f"{name}.yaml", to_yaml(template))
    assert check_jobset(jobset, profile) == []
    pod = {"apiVersion": "v1", "kind": "Pod"} | template | {"metadata": template["metadata"] | {"name": "a"}}
    kubernetes_validate.validate(pod, desired_version="1.36", strict=True)


def test_a_pod_with_a_profile_is_rejected_without_it(job, spec, settings) -> None:
    jobset, _ = render("gke-a3-ultra", {"from": "gke-a3-ultra"}, job, spec, settings)
    lines = " ".join(check_jobset(jobset))

    for words in (
        "metadata.annotations: must be an object with no annotation but",
        "volumes[6].hostPath: is not allowed",
        "capabilities.add: is",
    ):
        assert words in lines


def make(**parts: Any) -> PodProfile:
    return PodProfile("mine", **{f"{name}_json": dump_part(part) for name, part in parts.items()})


CHANGES = {
    "another path of the node": ("volumes", lambda pod: pod["spec"]["volumes"][-1]["hostPath"].update(path="/")),
    "a further volume": (
        "volumes",
        lambda pod: pod["spec"]["volumes"].append({"name": "etc", "hostPath": {"path": "/etc"}}),
    ),
    "no volume": ("must have the item", lambda pod: pod["spec"]["volumes"].pop()),
    "a further annotation": ("annotations", lambda pod: pod["metadata"]["annotations"].update({"other": "x"})),
    "another annotation": ("annotations.net", lambda pod: pod["metadata"]["annotations"].update({"net": "x"})),
    "more capabilities": (
        "capabilities.add",
        lambda pod: pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"].append("SYS_ADMIN"),
    ),
    "privileges": (
        "privileged",
        lambda pod: pod["spec"]["containers"][0]["securityContext"].update(privileged=True),
    ),
    "a user": ("runAsUser", lambda pod: pod["spec"]["securityContext"].update(runAsUser=0)),
    "no network of the node": ("hostNetwork", lambda pod: pod["spec"].pop("hostNetwork")),
    "processes of the node": ("hostPID", lambda pod: pod["spec"].update(hostPID=True)),
    "no metadata": ("metadata: must be an object", lambda pod: pod.pop("metadata")),
    "no containers": ("must be an object", lambda pod: pod["spec"].update(containers=[])),
}


@pytest.fixture
def profile() -> PodProfile:
    return make(
        metadata={"annotations": {"net": "all"}},
        spec={
            "hostNetwork": True,
            "volumes": [{"name": "lib", "hostPath": {"path": "/lib"}}],
            "securityContext": {"runAsUser": None},
        },
        container={
            "env": [{"name": "NCCL_NET", "value": "IB"}, {"name": "MINE", "value": "profile"}],
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "allowPrivilegeEscalation": True},
            "resources": {"limits": {"rdma/hca": "1"}},
            "volumeMounts": [{"name": "lib", "mountPath": "/usr/local/lib"}],
        },
    )


@pytest.fixture
def pod(job, spec, settings, profile) -> dict:
    written = spec | {"runtime": {"env": [{"name": "MINE", "value": "job"}]}, "scheduling": {"podProfile": "mine"}}
    plan = plan_job(TrainingJobSpec.model_validate(written), BUILTIN.with_profiles([profile]))
    jobset = render_base_jobset(job, plan, settings)
    return copy.deepcopy(jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])


def test_fields_are_merged_and_lists_are_joined(pod, profile) -> None:
    spec, trainer = pod["spec"], pod["spec"]["containers"][0]

    assert check_pod(pod, profile) == []
    assert (spec["hostNetwork"], "runAsUser" in spec["securityContext"]) == (True, False)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert trainer["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert trainer["resources"]["limits"].keys() == {"memory", "rdma/hca"}
    assert [volume["name"] for volume in spec["volumes"]][-1] == "lib"
    values = [one["value"] for one in trainer["env"] if one["name"] in ("MINE", "NCCL_NET")]
    assert sorted(values) == ["IB", "job"]  # a variable of the job wins


@pytest.mark.parametrize(("words", "damage"), CHANGES.values(), ids=CHANGES.keys())
def test_a_pod_that_differs_from_its_profile_is_rejected(pod, profile, words, damage) -> None:
    damage(pod)

    assert words in " ".join(check_pod(pod, profile))


def test_a_folder_that_the_job_mounts_too_is_rejected(pod, profile) -> None:
    trainer = pod["spec"]["containers"][0]
    trainer["volumeMounts"].append({"name": "tmp", "mountPath": "/usr/local/lib/"})

    assert "/usr/local/lib is mounted twice" in " ".join(check_pod(pod, profile))
