"""The policy of rendered pods: a field or value outside the allow-list is rejected, by every path."""

import copy
from collections.abc import Iterator

import pytest

from trainingjob_operator.render.jobset import render_base_jobset
from trainingjob_operator.render.node_preference import NodePreference
from trainingjob_operator.render.pod import render_pod_template
from trainingjob_operator.render.pod_policy import LABELS, TOPOLOGY_ANNOTATIONS, check_jobset, check_pod


@pytest.fixture
def pod(job, settings, cpu_plan) -> dict:
    env = [{"name": "KEY", "secretKeyRef": {"name": "keys", "key": "key"}}]
    volumes = [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]
    plan = cpu_plan(runtime={"env": env, "volumes": volumes, "imagePullSecrets": ["pull"]})
    return render_pod_template(
        job, plan, settings, {"trainingjob.dev/slice-offset": "0"}, NodePreference(("node-7",), ("node-8",))
    )


def place(pod: dict, path: str) -> tuple[dict | list, str | int]:
    """Return the object that holds a path's last part, and that part."""
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    here = pod
    for parent in parents:
        here = here[parent]
    return here, last


NEW_FIELDS = {
    "host network": ("spec/hostNetwork", True),
    "host processes": ("spec/hostPID", True),
    "host ipc": ("spec/hostIPC", True),
    "a node": ("spec/nodeName", "control-plane"),
    "another scheduler": ("spec/schedulerName", "mine"),
    "a runtime class": ("spec/runtimeClassName", "mine"),
    "shared processes": ("spec/shareProcessNamespace", True),
    "init containers": ("spec/initContainers", [{"name": "root", "image": "mine"}]),
    "a host path": ("spec/volumes/0/hostPath", {"path": "/"}),
    "a csi volume": ("spec/volumes/0/csi", {"driver": "mine"}),
    "sysctls": ("spec/securityContext/sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
    "selinux": ("spec/securityContext/seLinuxOptions", {"type": "spc_t"}),
    "an affinity to pods": ("spec/affinity/podAffinity", {}),
    "a choice of nodes by label": (
        "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions",
        [],
    ),
    "privileged": ("spec/containers/0/securityContext/privileged", True),
    "more capabilities": ("spec/containers/0/securityContext/capabilities/add", ["SYS_PTRACE"]),
    "an own user": ("spec/containers/0/securityContext/runAsUser", 0),
    "another /proc": ("spec/containers/0/securityContext/procMount", "Unmasked"),
    "host ports": ("spec/containers/0/ports", [{"hostPort": 22, "containerPort": 22}]),
    "hooks": ("spec/containers/0/lifecycle", {"postStart": {"exec": {"command": ["sh"]}}}),
    "all keys of a secret": ("spec/containers/0/envFrom", [{"secretRef": {"name": "keys"}}]),
    "a subpath": ("spec/containers/0/volumeMounts/0/subPathExpr", "$(HOME)"),
    "mounts that spread": ("spec/containers/0/volumeMounts/0/mountPropagation", "Bidirectional"),
}


@pytest.mark.parametrize(("path", "value"), NEW_FIELDS.values(), ids=NEW_FIELDS.keys())
def test_field_outside_the_allow_list_is_rejected(pod, path, value) -> None:
    holder, key = place(pod, path)
    holder[key] = value

    dotted = path.replace("/0", "[0]").replace("/", ".")
    assert check_pod(pod) == [f"{dotted}: is not allowed"]


VALUES = {
    "the API server's token": ("spec/automountServiceAccountToken", True, "must be false"),
    "service variables": ("spec/enableServiceLinks", True, "must be false"),
    "another restart policy": ("spec/restartPolicy", "Never", 'must be "OnFailure"'),
    "root": ("spec/securityContext/runAsUser", 0, "must be a number greater than 0"),
    "a node by name": (
        "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/operator",
        "In",
        'must be "NotIn"',
    ),
    "no number": ("spec/securityContext/runAsUser", True, "must be a number greater than 0"),
    "root's group": ("spec/securityContext/fsGroup", 0, "must be a number greater than 0"),
    "perhaps root": ("spec/securityContext/runAsNonRoot", False, "must be true"),
    "one is not true": ("spec/securityContext/runAsNonRoot", 1, "must be true"),
    "no seccomp": ("spec/securityContext/seccompProfile/type", "Unconfined", 'must be "RuntimeDefault"'),
    "more rights later": ("spec/containers/0/securityContext/allowPrivilegeEscalation", True, "must be false"),
    "a root that is written": ("spec/containers/0/securityContext/readOnlyRootFilesystem", False, "must be true"),
    "capabilities": ("spec/containers/0/securityContext/capabilities/drop", [], 'must be ["ALL"]'),
    "another audience": (
        "spec/volumes/1/projected/sources/0/serviceAccountToken/audience",
        "https://kubernetes.default.svc",
        'must be "rendezvous.trainingjob.dev"',
    ),
    "a foreign label": (
        "metadata/labels",
        {"sidecar.istio.io/inject": "true"},
        f"must be an object with no label but {', '.join(sorted(LABELS))}",
    ),
    "a foreign annotation": (
        "metadata/annotations",
        {"sidecar.istio.io/inject": "true"},
        f"must be an object with no annotation but {', '.join(sorted(TOPOLOGY_ANNOTATIONS))}",
    ),
    "no object": ("spec/securityContext", None, "must be an object"),
    "no list": ("spec/volumes", {"name": "root"}, "must be a list"),
    "no text": ("spec/containers/0/image", 1, "must be a text"),
}


@pytest.mark.parametrize(("path", "value", "words"), VALUES.values(), ids=VALUES.keys())
def test_value_outside_the_allow_list_is_rejected(pod, path, value, words) -> None:
    holder, key = place(pod, path)
    holder[key] = value

    (line,) = check_pod(pod)
    assert line.endswith(f": {words}")
    assert line.startswith(path.split("/")[0])


def test_a_default_of_kubernetes_is_not_enough(pod) -> None:
    """Kubernetes would mount a token, allow escalation and run as root where these are left out."""
    del pod["spec"]["automountServiceAccountToken"]
    del pod["spec"]["securityContext"]
    del pod["spec"]["containers"][0]["securityContext"]

    assert check_pod(pod) == [
        "spec.automountServiceAccountToken: must be false",
        "spec.securityContext.runAsNonRoot: must be true",
        "spec.securityContext.runAsUser: must be a number greater than 0",
        "spec.securityContext.runAsGroup: must be a number greater than 0",
        "spec.securityContext.fsGroup: must be a number greater than 0",
        'spec.securityContext.seccompProfile.type: must be "RuntimeDefault"',
        "spec.containers[0].securityContext.allowPrivilegeEscalation: must be false",
        "spec.containers[0].securityContext.readOnlyRootFilesystem: must be true",
        'spec.containers[0].securityContext.capabilities.drop: must be ["ALL"]',
    ]


FREE = ("/resources/", "/nodeSelector", "/tolerations/", "/topologySpreadConstraints/", "/metadata/labels")


def test_every_object_of_a_pod_rejects_unknown_fields(pod) -> None:
    objects = [path for path in object_paths(pod, "") if not any(free in f"{path}/" for free in FREE)]

    assert len(objects) > 20
    for path in objects:
        changed = copy.deepcopy(pod)
        holder, key = place({"pod": changed}, f"pod{path}")
        holder[key]["surprise"] = 1
        assert [line for line in check_pod(changed) if line.endswith("surprise: is not allowed")], path


def object_paths(part: object, path: str) -> Iterator[str]:
    if isinstance(part, dict):
        yield path
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, inner in items:
        yield from object_paths(inner, f"{path}/{key}")


MOUNTS = {
    "over the config": ("/etc/trainingjob", "is reserved for the pod and must not be a volume"),
    "below the config": ("/etc/trainingjob/more/", "is reserved for the pod and must not be a volume"),
    "above the config": ("/etc", "is reserved for the pod and must not be a volume"),
    "over everything": ("/", "is reserved for the pod and must not be a volume"),
    "over the program": ("/opt/venv", "is reserved for the pod and must not be a volume"),
    "with steps back": ("/shared/../etc/trainingjob", "must not contain `..`"),
}


@pytest.mark.parametrize(("folder", "words"), MOUNTS.values(), ids=MOUNTS.keys())
def test_claim_cannot_shadow_the_agent_s_folders(pod, folder, words) -> None:
    pod["spec"]["containers"][0]["volumeMounts"][-1]["mountPath"] = folder

    assert any(words in line for line in check_pod(pod))


def test_two_mounts_at_one_path_are_rejected(pod) -> None:
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    mounts.append(mounts[-1] | {"mountPath": "/shared/"})

    assert check_pod(pod) == [
        f"spec.containers[0].volumeMounts[{len(mounts) - 1}].mountPath: must be unique, but /shared is mounted twice"
    ]


def test_two_variables_of_one_name_are_rejected(pod) -> None:
    env = pod["spec"]["containers"][0]["env"]
    env.append({"name": "TRAININGJOB_RENDEZVOUS", "value": "https://elsewhere"})

    assert check_pod(pod) == [
        f"spec.containers[0].env[{len(env) - 1}].name: must be unique, but TRAININGJOB_RENDEZVOUS occurs twice"
    ]


@pytest.mark.parametrize("count", [0, 2])
def test_a_pod_has_one_container(pod, count) -> None:
    pod["spec"]["containers"] *= count

    assert check_pod(pod) == [f"spec.containers: must have 1 item, not {count}"]


MALFORMED = [None, [], {}, {"metadata": [], "spec": []}, {"metadata": {"labels": []}, "spec": {"containers": [None]}}]


@pytest.mark.parametrize("pod", MALFORMED, ids=str)
def test_value_that_is_no_pod_is_rejected_without_an_exception(pod) -> None:
    assert check_pod(pod)


def test_a_jobset_is_checked_by_its_pods(job, settings, cpu_plan) -> None:
    jobset = render_base_jobset(job, cpu_plan(), settings)
    assert check_jobset(jobset) == []

    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostNetwork"] = True
    assert check_jobset(jobset) == ["spec.replicatedJobs[0].template.spec.template.spec.hostNetwork: is not allowed"]
