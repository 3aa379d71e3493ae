"""The pod: each setting of a job reaches its field, and all other fields are constant."""

from dataclasses import replace

import pytest

from trainingjob_operator.core.planner.plan import SnapshotPlan
from trainingjob_operator.core.planner.run_config import expected_hardware
from trainingjob_operator.core.validation.quantity import parse_bytes
from trainingjob_operator.render.pod import render_pod_template
from trainingjob_operator.render.pod_policy import check_pod

GI = 2**30


@pytest.fixture
def render(job, settings):
    return lambda plan: render_pod_template(job, plan, settings, {"trainingjob.dev/slice-offset": "0"})


def spec_of(pod: dict) -> dict:
    return pod["spec"]


def container_of(pod: dict) -> dict:
    return pod["spec"]["containers"][0]


def test_job_without_image_has_the_installation_s_image(render, cpu_plan, settings) -> None:
    container = container_of(render(cpu_plan()))

    assert (container["image"], container["imagePullPolicy"]) == (settings.trainer_image, "IfNotPresent")


IMAGES = {"tpu": "registry.example/tpu:1", "cuda13": "registry.example/gpu:1"}


@pytest.mark.parametrize(
    ("shape", "runtime", "image"),
    [
        ("cpu_plan", {}, "registry.example/trainer:1.0"),
        ("tpu_plan", {}, IMAGES["tpu"]),
        ("gpu_plan", {}, IMAGES["cuda13"]),
        ("gpu_plan", {"image": "mine:1"}, "mine:1"),
    ],
)
def test_the_accelerator_chooses_the_image(job, settings, request, shape, runtime, image) -> None:
    plan = request.getfixturevalue(shape)(runtime=runtime)
    several = replace(settings, trainer_images=IMAGES)

    assert container_of(render_pod_template(job, plan, several, {}))["image"] == image


def test_a_job_chooses_image_and_pull_policy(render, cpu_plan) -> None:
    container = container_of(render(cpu_plan(runtime={"image": "mine:1", "imagePullPolicy": "Always"})))

    assert (container["image"], container["imagePullPolicy"]) == ("mine:1", "Always")


CHOICES = {
    "service account": ({"runtime": {"serviceAccountName": "reader"}}, "serviceAccountName", "reader"),
    "priority": ({"scheduling": {"priorityClassName": "high"}}, "priorityClassName", "high"),
    "pull secrets": (
        {"runtime": {"imagePullSecrets": ["one", "two"]}},
        "imagePullSecrets",
        [{"name": "one"}, {"name": "two"}],
    ),
    "nodes": ({"scheduling": {"nodeSelector": {"disk": "fast"}}}, "nodeSelector", {"disk": "fast"}),
}


@pytest.mark.parametrize(("sections", "field", "want"), CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_arrives(render, cpu_plan, sections, field, want) -> None:
    assert spec_of(render(cpu_plan(**sections)))[field] == want
    assert field not in spec_of(render(cpu_plan()))


def test_a_pod_has_the_time_to_leave_that_its_job_gives_it(render, cpu_plan) -> None:
    assert spec_of(render(cpu_plan()))["terminationGracePeriodSeconds"] == 30
    longer = cpu_plan(runtime={"terminationGracePeriod": "2m"})
    assert spec_of(render(longer))["terminationGracePeriodSeconds"] == 120


def test_a_secret_of_a_section_is_a_variable_of_the_pod(render, cpu_plan) -> None:
    key = {"name": "keys", "key": "wandb"}
    rendered = container_of(render(cpu_plan(metrics={"wandb": {"project": "p", "apiKey": {"secretKeyRef": key}}})))[
        "env"
    ]

    assert [one for one in rendered if one["name"] == "WANDB_API_KEY"] == [
        {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": key}}
    ]


def test_env_comes_from_values_secrets_and_config_maps(render, cpu_plan) -> None:
    env = [
        {"name": "PLAIN", "value": "text"},
        {"name": "EMPTY", "value": ""},
        {"name": "SECRET", "secretKeyRef": {"name": "keys", "key": "token"}},
        {"name": "CONFIG", "configMapKeyRef": {"name": "facts", "key": "fact"}},
    ]
    rendered = container_of(render(cpu_plan(runtime={"env": env})))["env"]

    assert rendered[:4] == [
        {"name": "PLAIN", "value": "text"},
        {"name": "EMPTY", "value": ""},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "facts", "key": "fact"}}},
    ]


def test_a_job_may_choose_its_home(render, cpu_plan) -> None:
    def homes(pod) -> list[str]:
        return [variable["value"] for variable in container_of(pod)["env"] if variable["name"] == "HOME"]

    assert homes(render(cpu_plan())) == ["/tmp"]
    assert homes(render(cpu_plan(runtime={"env": [{"name": "HOME", "value": "/shared/me"}]}))) == ["/shared/me"]


def test_agent_environment_contains_its_identity(render, cpu_plan, settings) -> None:
    env = {variable["name"]: variable for variable in container_of(render(cpu_plan()))["env"]}

    plain = {name: variable["value"] for name, variable in env.items() if "value" in variable}
    fields = {
        name: variable["valueFrom"]["fieldRef"]["fieldPath"]
        for name, variable in env.items()
        if "valueFrom" in variable
    }
    assert plain == {
        "HOME": "/tmp",
        "TRAININGJOB_CONFIG": "/etc/trainingjob/run.json",
        "TRAININGJOB_RENDEZVOUS": settings.rendezvous_url,
        "TRAININGJOB_CA": "/etc/trainingjob/ca.crt",
        "TRAININGJOB_TOKEN": "/var/run/secrets/trainingjob.dev/token",
        "TRAININGJOB_COMPILE_CACHE": "/var/cache/trainingjob",
        "TRAININGJOB_EXPECTED": expected_hardware(cpu_plan()).model_dump_json(exclude_defaults=True),
    }
    assert fields == {
        "TRAININGJOB_POD": "metadata.name",
        "TRAININGJOB_POD_UID": "metadata.uid",
        "TRAININGJOB_ADDRESS": "status.podIP",
        "TRAININGJOB_SLICE_OFFSET": "metadata.labels['trainingjob.dev/slice-offset']",
        "TRAININGJOB_JOB_INDEX": "metadata.labels['jobset.sigs.k8s.io/job-index']",
        "TRAININGJOB_HOST": "metadata.labels['batch.kubernetes.io/job-completion-index']",
    }


CACHES = {
    "a volume of the pod": ({}, "/var/cache/trainingjob", True),
    "a folder of the job": ({"path": "/shared/cache"}, "/shared/cache", False),
    "none": ({"enabled": False}, "", False),
    "none, though a folder is named": ({"enabled": False, "path": "/shared/cache"}, "", False),
}


@pytest.mark.parametrize(("cache", "folder", "has_volume"), CACHES.values(), ids=CACHES.keys())
def test_compiled_programs_are_kept(render, cpu_plan, cache, folder, has_volume) -> None:
    pod = render(cpu_plan(runtime={"compileCache": cache}))

    variables = {variable["name"]: variable.get("value") for variable in container_of(pod)["env"]}
    assert variables["TRAININGJOB_COMPILE_CACHE"] == folder
    assert has_volume == any(volume["name"] == "compile-cache" for volume in spec_of(pod)["volumes"])
    assert has_volume == any(mount["name"] == "compile-cache" for mount in container_of(pod)["volumeMounts"])


def test_snapshots_lie_in_memory_of_their_own_that_outlives_the_container(render, cpu_plan) -> None:
    snapshots = SnapshotPlan(every_steps=5, bytes_per_host=30 * 2**20)
    calm, pod = render(cpu_plan()), render(replace(cpu_plan(), snapshots=snapshots))

    assert {"name": "snapshots", "emptyDir": {"medium": "Memory", "sizeLimit": "90Mi"}} in spec_of(pod)["volumes"]
    mount = {"name": "snapshots", "mountPath": "/var/cache/trainingjob/snapshots"}
    assert mount in container_of(pod)["volumeMounts"]
    assert {"name": "TRAININGJOB_SNAPSHOTS", "value": mount["mountPath"]} in container_of(pod)["env"]
    limits = [parse_bytes(container_of(one)["resources"]["limits"]["memory"]) for one in (calm, pod)]
    assert limits[1] - limits[0] == 90 * 2**20
    assert check_pod(pod) == []
    assert "snapshots" not in str(calm)


def test_snapshots_on_disk_take_memory_for_one_and_disk_for_all(render, cpu_plan) -> None:
    snapshots = SnapshotPlan(every_steps=5, bytes_per_host=30 * 2**20, medium="disk")
    calm, pod = render(cpu_plan()), render(replace(cpu_plan(), snapshots=snapshots))

    assert {"name": "snapshots", "emptyDir": {"sizeLimit": "90Mi"}} in spec_of(pod)["volumes"]
    before, resources = (container_of(one)["resources"] for one in (calm, pod))
    memory = [parse_bytes(one["limits"]["memory"]) for one in (before, resources)]
    assert memory[1] - memory[0] == 30 * 2**20
    assert resources["requests"]["ephemeral-storage"] == "90Mi"
    assert "ephemeral-storage" not in resources["limits"]
    assert "ephemeral-storage" not in before["requests"]
    assert check_pod(pod) == []


def test_claims_are_mounted_and_cannot_take_the_name_of_a_volume_of_ours(render, cpu_plan) -> None:
    volumes = [
        {"name": "tmp", "claimName": "corpus", "mountPath": "/corpus", "readOnly": True},
        {"name": "runs", "claimName": "runs", "mountPath": "/runs"},
    ]
    pod = render(cpu_plan(runtime={"volumes": volumes}))

    assert spec_of(pod)["volumes"][-2:] == [
        {"name": "volume-tmp", "persistentVolumeClaim": {"claimName": "corpus"}},
        {"name": "volume-runs", "persistentVolumeClaim": {"claimName": "runs"}},
    ]
    assert container_of(pod)["volumeMounts"][-2:] == [
        {"name": "volume-tmp", "mountPath": "/corpus", "readOnly": True},
        {"name": "volume-runs", "mountPath": "/runs"},
    ]


def test_every_volume_is_mounted_once(render, cpu_plan) -> None:
    pod = render(cpu_plan())

    assert [volume["name"] for volume in spec_of(pod)["volumes"]] == [
        mount["name"] for mount in container_of(pod)["volumeMounts"]
    ]


def test_memory_volumes_count_against_the_memory_limit(render, cpu_plan) -> None:
    pod = render(cpu_plan(runtime={"resources": {"cpu": "500m", "memory": "2Gi"}}))

    amounts = {"cpu": "500m", "memory": "2304Mi"}
    limits = {name: amount for name, amount in amounts.items() if name != "cpu"}
    assert container_of(pod)["resources"] == {"requests": amounts, "limits": limits}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}} in spec_of(pod)["volumes"]


def test_a_host_takes_its_accelerators_and_finds_their_nodes(render, tpu_plan) -> None:
    pod = render(tpu_plan(scheduling={"nodeSelector": {"disk": "fast"}}))

    assert container_of(pod)["resources"]["limits"]["google.com/tpu"] == "4"
    assert spec_of(pod)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
        "disk": "fast",
    }
    assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in spec_of(pod)["tolerations"]
    assert "topologySpreadConstraints" not in spec_of(pod)


def test_a_host_of_gpus_takes_them_and_tolerates_every_taint_of_its_nodes(render, gpu_plan) -> None:
    pod = render(gpu_plan())
    taken = container_of(pod)["resources"]

    assert (taken["limits"]["nvidia.com/gpu"], taken["requests"]["nvidia.com/gpu"]) == ("4", "4")
    assert spec_of(pod)["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-gb200"}
    assert taken["limits"]["memory"] == "6Gi"  # the default 2Gi, and what NCCL may take
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}} in spec_of(pod)["volumes"]
    tolerated = [one["key"] for one in spec_of(pod)["tolerations"] if one["effect"] == "NoSchedule"]
    assert tolerated == ["nvidia.com/gpu", "kubernetes.io/arch"]


def test_host_requests_chips_not_devices(render, two_device_plan) -> None:
    assert container_of(render(two_device_plan()))["resources"]["limits"]["google.com/tpu"] == "4"


def test_hosts_on_cpu_prefer_different_nodes(render, cpu_plan, job) -> None:
    (spread,) = spec_of(render(cpu_plan()))["topologySpreadConstraints"]

    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"] == {"matchLabels": {"trainingjob.dev/job-uid": job.uid}}


NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
TOLERATIONS = {
    "none of its own": ([], {NOT_READY: 30, UNREACHABLE: 30}),
    "another taint": ([{"key": "team", "value": "research"}], {NOT_READY: 30, UNREACHABLE: 30}),
    "a lost node for longer": (
        [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}],
        {NOT_READY: 30, UNREACHABLE: 600},
    ),
    "entering a lost node, which says nothing of staying": (
        [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}],
        {NOT_READY: 30, UNREACHABLE: 30},
    ),
    "everything, which Kubernetes shortens to the shortest": (
        [{"operator": "Exists"}],
        {NOT_READY: 30, UNREACHABLE: 30},
    ),
}


@pytest.mark.parametrize(("tolerations", "want"), TOLERATIONS.values(), ids=TOLERATIONS.keys())
def test_a_pod_leaves_a_lost_node_soon(render, cpu_plan, tolerations, want) -> None:
    rendered = spec_of(render(cpu_plan(scheduling={"tolerations": tolerations})))["tolerations"]

    stay = {one["key"]: one["tolerationSeconds"] for one in rendered if "tolerationSeconds" in one}
    assert stay == want
    assert len(rendered) == len({(one.get("key"), one.get("effect")) for one in rendered})


def test_the_token_is_for_the_rendezvous_alone(render, cpu_plan) -> None:
    pod = render(cpu_plan())

    (source,) = next(volume["projected"]["sources"] for volume in spec_of(pod)["volumes"] if volume["name"] == "token")
    assert source["serviceAccountToken"]["audience"] == "rendezvous.trainingjob.dev"
    assert spec_of(pod)["automountServiceAccountToken"] is False


ALLOWED = {
    "cpu": ("cpu_plan", {}),
    "tpu": ("tpu_plan", {}),
    "all choices": (
        "cpu_plan",
        {
            "runtime": {
                "image": "mine:1",
                "imagePullPolicy": "Never",
                "imagePullSecrets": ["one"],
                "serviceAccountName": "reader",
                "env": [
                    {"name": "SECRET", "secretKeyRef": {"name": "keys", "key": "token"}},
                    {"name": "CONFIG", "configMapKeyRef": {"name": "facts", "key": "fact"}},
                    {"name": "HOME", "value": "/corpus"},
                ],
                "volumes": [{"name": "corpus", "claimName": "corpus", "mountPath": "/corpus", "readOnly": True}],
                "compileCache": {"path": "/corpus/cache"},
            },
            "scheduling": {
                "priorityClassName": "high",
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "team", "value": "research", "effect": "NoSchedule"}],
            },
        },
    ),
}


@pytest.mark.parametrize(("make", "sections"), ALLOWED.values(), ids=ALLOWED.keys())
def test_rendered_pods_pass_the_policy(render, request, make, sections) -> None:
    assert check_pod(render(request.getfixturevalue(make)(**sections))) == []
