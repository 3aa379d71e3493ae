"""The last look at a pod before it is created: it must be one that Pod Security `restricted` lets in, and no more.

Rules about what users write are many and grow; one that is forgotten would open the cluster. So what comes out of the
renderer is checked, by a list of what may be there. The list is written apart from the renderer on purpose.
"""

from collections.abc import Iterator
from typing import Any

from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import JOB_LABEL, SLICE_OFFSET_LABEL, UID_LABEL
from trainingjob_operator.core.validation.folders import is_reserved
from trainingjob_operator.render.metadata import MANAGED_BY_LABEL
from trainingjob_operator.render.shapes import ANYTHING, FALSE, TEXT, TRUE, Leaf, Maybe, Shape, departures, required

LABELS = frozenset((JOB_LABEL, UID_LABEL, SLICE_OFFSET_LABEL, MANAGED_BY_LABEL))

_KEY = Maybe({"name": TEXT, "key": TEXT})
_NOT_ROOT = Leaf("a number above 0", lambda user: type(user) is int and user > 0, is_required=True)

_TOKEN: Shape = {"audience": required(TOKEN_AUDIENCE), "expirationSeconds": ANYTHING, "path": TEXT}
_KEEP_CLEAR: Shape = {
    "nodeSelectorTerms": [
        {"matchFields": [{"key": required("metadata.name"), "operator": required("NotIn"), "values": ANYTHING}]}
    ]
}

CONTAINER: Shape = {
    "name": TEXT,
    "image": TEXT,
    "imagePullPolicy": ANYTHING,
    "command": ANYTHING,
    "env": [
        {
            "name": TEXT,
            "value": ANYTHING,
            "valueFrom": Maybe({"secretKeyRef": _KEY, "configMapKeyRef": _KEY, "fieldRef": Maybe({"fieldPath": TEXT})}),
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

POD: Shape = {
    "metadata": {
        "labels": Leaf(
            f"an object with no label but {', '.join(sorted(LABELS))}",
            lambda labels: isinstance(labels, dict) and labels.keys() <= LABELS,
        )
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
        "nodeSelector": ANYTHING,
        "affinity": Maybe({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _KEEP_CLEAR}}),
        "tolerations": ANYTHING,
        "topologySpreadConstraints": ANYTHING,
        "containers": [CONTAINER],
        "volumes": [
            {
                "name": TEXT,
                "configMap": Maybe({"name": TEXT}),
                "emptyDir": Maybe({"medium": ANYTHING, "sizeLimit": TEXT}),
                "persistentVolumeClaim": Maybe({"claimName": TEXT}),
                "projected": Maybe({"sources": [{"serviceAccountToken": _TOKEN}]}),
            }
        ],
    },
}


def check_jobset(jobset: Manifest) -> list[str]:
    """Return what the pods of a rendered JobSet must not have, a line each with its path; empty: it may be created."""
    return [
        f"spec.replicatedJobs[{index}].template.spec.template.{line}"
        for index, replicated in enumerate(jobset["spec"]["replicatedJobs"])
        for line in check_pod(replicated["template"]["spec"]["template"])
    ]


def check_pod(pod: Manifest) -> list[str]:
    """Return what a rendered pod (template) must not have, a line each with its path; empty: it may be created."""
    lines = list(departures(pod, POD, "pod"))
    if not lines:  # the shape is right, so the parts can be looked at
        containers = pod["spec"].get("containers", [])
        lines += [] if len(containers) == 1 else [f"pod.spec.containers: must be one, not {len(containers)}"]
        for index, container in enumerate(containers):
            lines += _check_names(container, f"pod.spec.containers[{index}]")
            lines += _check_mounts(pod["spec"], container, f"pod.spec.containers[{index}].volumeMounts")
    return [line.removeprefix("pod.") for line in lines]


def _check_names(container: dict[str, Any], path: str) -> Iterator[str]:
    """Yield variables that are there twice: the later one would win in silence, and it may not be ours."""
    seen = set()
    for index, variable in enumerate(container.get("env", [])):
        if variable["name"] in seen:
            yield f"{path}.env[{index}].name: {variable['name']} is there twice"
        seen.add(variable["name"])


def _check_mounts(spec: dict[str, Any], container: dict[str, Any], path: str) -> Iterator[str]:
    """Yield mounts of claims that would hide or share what the agent stands on, or each other."""
    claims = {volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume}
    seen: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", [])):
        folder = "/" + mount["mountPath"].strip("/")
        here = f"{path}[{index}].mountPath"
        if ".." in folder.split("/"):
            yield f"{here}: {folder} must not contain `..`"
        if folder in seen:
            yield f"{here}: {folder} is mounted twice"
        if mount["name"] in claims and is_reserved(folder):
            yield f"{here}: {folder} belongs to the pod itself"
        seen.add(folder)
