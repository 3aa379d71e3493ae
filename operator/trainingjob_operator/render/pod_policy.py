"""Allow-list check of rendered pods: a pod must satisfy Pod Security `restricted` and hold no other field.

Many rules validate user input, and a missing rule could open the cluster. The operator therefore checks the renderer's
output before it creates a pod. The allow-list is deliberately separate from the renderer. A pod profile of the
administrator widens it by exactly the fields and values of that profile.
"""

from collections.abc import Iterator
from typing import Any

from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import JOB_LABEL, SLICE_OFFSET_LABEL, UID_LABEL
from trainingjob_operator.core.planner.pod_profile import PodProfile
from trainingjob_operator.core.validation.reserved_folders import is_reserved
from trainingjob_operator.render.allow_list import (
    ANYTHING,
    FALSE,
    TEXT,
    TRUE,
    AllowList,
    FieldRule,
    OptionalObject,
    find_violations,
    required,
)
from trainingjob_operator.render.metadata import MANAGED_BY_LABEL
from trainingjob_operator.render.profile import subtract_profile

LABELS = frozenset((JOB_LABEL, UID_LABEL, SLICE_OFFSET_LABEL, MANAGED_BY_LABEL))

TOPOLOGY_ANNOTATIONS = frozenset(
    f"kueue.x-k8s.io/podset-{name}"
    for name in ("required-topology", "preferred-topology", "slice-required-topology", "slice-size")
)
"""Annotations by which Kueue places pods."""

BASIC = frozenset(("cpu", "memory"))
"""Resources of a pod that uses no accelerator."""

_KEY = OptionalObject({"name": TEXT, "key": TEXT})
_NOT_ROOT = FieldRule("a number greater than 0", lambda user: type(user) is int and user > 0, is_required=True)

_TOKEN: AllowList = {"audience": required(TOKEN_AUDIENCE), "expirationSeconds": ANYTHING, "path": TEXT}
_NODE_EXCLUSION: AllowList = {
    "matchFields": [{"key": required("metadata.name"), "operator": required("NotIn"), "values": ANYTHING}]
}
_NODE_AFFINITY: AllowList = {
    "requiredDuringSchedulingIgnoredDuringExecution": OptionalObject({"nodeSelectorTerms": [_NODE_EXCLUSION]}),
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": ANYTHING, "preference": _NODE_EXCLUSION}],
}

CONTAINER: AllowList = {
    "name": TEXT,
    "image": TEXT,
    "imagePullPolicy": ANYTHING,
    "command": ANYTHING,
    "env": [
        {
            "name": TEXT,
            "value": ANYTHING,
            "valueFrom": OptionalObject(
                {"secretKeyRef": _KEY, "configMapKeyRef": _KEY, "fieldRef": OptionalObject({"fieldPath": TEXT})}
            ),
        }
    ],
    "resources": {"requests": ANYTHING, "limits": ANYTHING},
    "securityContext": {
        "allowPrivilegeEscalation": FALSE,
        "readOnlyRootFilesystem": TRUE,
        "capabilities": {"drop": required(["ALL"])},
    },
    "terminationMessagePolicy": ANYTHING,
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT, "readOnly": ANYTHING}],
}

POD: AllowList = {
    "metadata": {
        "annotations": FieldRule(
            f"an object with no annotation but {', '.join(sorted(TOPOLOGY_ANNOTATIONS))}",
            lambda annotations: isinstance(annotations, dict) and annotations.keys() <= TOPOLOGY_ANNOTATIONS,
        ),
        "labels": FieldRule(
            f"an object with no label but {', '.join(sorted(LABELS))}",
            lambda labels: isinstance(labels, dict) and labels.keys() <= LABELS,
        ),
    },
    "spec": {
        "restartPolicy": required("OnFailure"),
        "terminationGracePeriodSeconds": ANYTHING,
        "automountServiceAccountToken": FALSE,
        "enableServiceLinks": FALSE,
        "serviceAccountName": ANYTHING,
        "priorityClassName": ANYTHING,
        "imagePullSecrets": [{"name": TEXT}],
        "securityContext": {
            "runAsNonRoot": TRUE,
            "runAsUser": _NOT_ROOT,
            "runAsGroup": _NOT_ROOT,
            "fsGroup": _NOT_ROOT,
            "fsGroupChangePolicy": ANYTHING,
            "seccompProfile": {"type": required("RuntimeDefault")},
        },
        "schedulingGroup": OptionalObject({"podGroupName": TEXT}),
        "nodeSelector": ANYTHING,
        "affinity": OptionalObject({"nodeAffinity": _NODE_AFFINITY}),
        "tolerations": ANYTHING,
        "topologySpreadConstraints": ANYTHING,
        "containers": [CONTAINER],
        "volumes": [
            {
                "name": TEXT,
                "emptyDir": OptionalObject({"medium": ANYTHING, "sizeLimit": TEXT}),
                "persistentVolumeClaim": OptionalObject({"claimName": TEXT}),
                "projected": OptionalObject(
                    {
                        "sources": [
                            {
                                "serviceAccountToken": OptionalObject(_TOKEN),
                                "configMap": OptionalObject({"name": TEXT}),
                            }
                        ]
                    }
                ),
            }
        ],
    },
}


def check_jobset(jobset: Manifest, profile: PodProfile | None = None) -> list[str]:
    """Return the violations of a rendered JobSet's pods, one line with field path each. Empty: it is allowed."""
    return [
        f"spec.replicatedJobs[{index}].template.spec.template.{violation}"
        for index, replicated in enumerate(jobset["spec"]["replicatedJobs"])
        for violation in check_pod(replicated["template"]["spec"]["template"], profile)
    ]


def check_preparation(job: Manifest, profile: PodProfile | None = None) -> list[str]:
    """Return the violations of the pods of a rendered preparation, one line with field path each. Empty: allowed.

    Its pods must not request accelerators either.
    """
    violations = check_pod(job["spec"]["template"], profile and profile.for_preparation)
    for kind in ("requests", "limits"):
        resources = job["spec"]["template"]["spec"]["containers"][0]["resources"].get(kind, {})
        violations += [
            f"spec.containers[0].resources.{kind}.{name}: is not allowed" for name in resources.keys() - BASIC
        ]
    return [f"spec.template.{violation}" for violation in violations]


def check_pod(pod: Manifest, profile: PodProfile | None = None) -> list[str]:
    """Return the violations of a rendered pod template, one line with field path each. Empty: it is allowed."""
    rest, deviations, decided = subtract_profile(pod, profile) if profile else (pod, [], frozenset())
    other_violations = [
        violation for violation in find_violations(rest, POD, "pod") if violation.partition(": ")[0] not in decided
    ]
    violations = [*deviations, *other_violations]
    if not violations:  # the checks below rely on a valid shape
        containers = pod["spec"].get("containers", [])
        violations += [] if len(containers) == 1 else [f"pod.spec.containers: must have 1 item, not {len(containers)}"]
        for index, container in enumerate(containers):
            violations += _check_names(container, f"pod.spec.containers[{index}]")
            violations += _check_mounts(pod["spec"], container, f"pod.spec.containers[{index}].volumeMounts")
    return [violation.removeprefix("pod.") for violation in violations]


def _check_names(container: dict[str, Any], path: str) -> Iterator[str]:
    """Yield duplicate environment variables: the last definition silently wins and may not be the operator's."""
    seen = set()
    for index, variable in enumerate(container.get("env", [])):
        if variable["name"] in seen:
            yield f"{path}.env[{index}].name: must be unique, but {variable['name']} occurs twice"
        seen.add(variable["name"])


def _check_mounts(spec: dict[str, Any], container: dict[str, Any], path: str) -> Iterator[str]:
    """Yield invalid mounts: duplicates, paths with `..`, and claims mounted over folders that the agent needs."""
    claims = {volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume}
    seen: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", [])):
        folder = "/" + mount["mountPath"].strip("/")
        field_path = f"{path}[{index}].mountPath"
        if ".." in folder.split("/"):
            yield f"{field_path}: {folder} must not contain `..`"
        if folder in seen:
            yield f"{field_path}: must be unique, but {folder} is mounted twice"
        if mount["name"] in claims and is_reserved(folder):
            yield f"{field_path}: {folder} is reserved for the pod and must not be a volume"
        seen.add(folder)
