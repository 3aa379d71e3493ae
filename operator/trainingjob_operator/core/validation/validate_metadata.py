"""Checks of the fields beside the spec: unknown fields, metadata, and labels and annotations without effect.

`kubectl apply` rejects unknown fields (strict decoding). The API server rejects metadata according to
`ValidateObjectMeta` of apimachinery's `api/validation`: labels, annotations of more than 256 KiB, names of namespaces.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from trainingjob_api.notation import slug
from trainingjob_api.parse.common_mistakes import correct_boolean
from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.problem import Problem, as_text
from trainingjob_operator.core.manifests import get_text, get_value
from trainingjob_operator.core.names import MAX_LABEL_LENGTH
from trainingjob_operator.core.validation.validate_pods import describe_label_key_error

FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
METADATA = (
    "name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid", "generation",
    "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
    "selfLink",
)  # fmt: skip
MAX_ANNOTATIONS = 256 * 1024
"""Total bytes of all keys and values (`TotalAnnotationSizeLimitB`)."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_NODES = "Set `spec.scheduling.nodeSelector`."
_PODS = "The operator does not copy it to the pods."
_TOPOLOGY = "Set `spec.scheduling.exclusiveTopology`."
_ACCOUNT = "Set it on the ServiceAccount of `spec.runtime.serviceAccountName`."
_QUEUE = "Set `spec.scheduling.queueName` to a LocalQueue of Kueue."
_GANG = "A JobSet already places all pods of a slice together."
FOREIGN_LABELS: dict[str, str] = {
    QUEUE_LABEL: "Set `spec.scheduling.queueName`.",
    "kueue.x-k8s.io/priority-class": "Set `spec.scheduling.priorityClassName`, which Kueue uses, too.",
    "kueue.x-k8s.io/max-exec-time-seconds": "Set `spec.activeDeadlineSeconds`.",
    "kueue.x-k8s.io/podset-required-topology": "Set `spec.scheduling.requiredTopology`.",
    "kueue.x-k8s.io/podset-preferred-topology": "Set `spec.scheduling.preferredTopology`.",
    "kueue.x-k8s.io/podset-slice-required-topology": "Set `spec.scheduling.requiredTopology`.",
    "kueue.x-k8s.io/wait-for-pods-ready": "Set `spec.scheduling.readyTimeout`.",
    "kueue.x-k8s.io/elastic-job": "Set `spec.slices.min` and `spec.slices.max`.",
    "kueue.x-k8s.io/": "Kueue manages the JobSets of a job. Set their queue in `spec.scheduling.queueName`.",
    "alpha.jobset.sigs.k8s.io/exclusive-topology": _TOPOLOGY,
    "alpha.jobset.sigs.k8s.io/node-selector": _NODES,
    "alpha.jobset.sigs.k8s.io/": "The operator does not copy it to the JobSets.",
    "jobset.sigs.k8s.io/": "The operator does not copy it to the JobSets.",
    "batch.kubernetes.io/": "The operator does not copy it to the Jobs.",
    "scheduling.volcano.sh/": _QUEUE,
    "volcano.sh/": _QUEUE,
    "yunikorn.apache.org/": _QUEUE,
    "runai/": _QUEUE,
    "kai.scheduler/": _QUEUE,
    "scheduling.k8s.io/group-name": _GANG,
    "scheduling.x-k8s.io/pod-group": _GANG,
    "cloud.google.com/gke-tpu-topology": "Set `spec.slices.topology`.",
    "cloud.google.com/gke-tpu-accelerator": "Set `spec.slices.accelerator`.",
    "cloud.google.com/gke-accelerator": "Set `spec.slices.accelerator`.",
    "cloud.google.com/": _NODES,
    "gke-gcsfuse/": f"{_PODS} Mount a claim of the bucket in `spec.runtime.volumes`.",
    "gke-parallelstore/": f"{_PODS} Mount a claim of the store in `spec.runtime.volumes`.",
    "networking.gke.io/": _PODS,
    "devices.gke.io/": _PODS,
    "autopilot.gke.io/": _PODS,
    "iam.gke.io/": _ACCOUNT,
    "eks.amazonaws.com/role-arn": _ACCOUNT,
    "eks.amazonaws.com/": _NODES,
    "azure.workload.identity/": _ACCOUNT,
    "k8s.v1.cni.cncf.io/": _PODS,
    "k8s.amazonaws.com/": _NODES,
    "karpenter.sh/do-not-disrupt": _PODS,
    "karpenter.sh/": _NODES,
    "karpenter.k8s.aws/": _NODES,
    "node.kubernetes.io/": _NODES,
    "topology.kubernetes.io/": _NODES,
    "kubernetes.io/hostname": _NODES,
    "nvidia.com/": _NODES,
    "cluster-autoscaler.kubernetes.io/": _PODS,
    "kubectl.kubernetes.io/default-container": _PODS,
    "sidecar.istio.io/": _PODS,
    "linkerd.io/": _PODS,
    "vault.hashicorp.com/": _PODS,
    "prometheus.io/": f"{_PODS} The operator exports the metrics of jobs.",
    "container.apparmor.security.beta.kubernetes.io/": _PODS,
    "seccomp.security.alpha.kubernetes.io/": _PODS,
    "descheduler.alpha.kubernetes.io/": _PODS,
}
"""Labels and annotations of other tools, or their prefixes, and the supported alternative."""


def check_fields(job: Any) -> Iterator[Problem]:
    """Check that the object and its metadata have only fields of Kubernetes."""
    yield from _check_fields(job, "", "a TrainingJob", FIELDS)
    yield from _check_fields(get_value(job, "metadata"), "metadata.", "metadata", METADATA)


def _check_fields(value: Any, path: str, owner: str, fields: tuple[str, ...]) -> Iterator[Problem]:
    for name, content in value.items() if isinstance(value, dict) else ():
        if name not in fields:
            close = get_close_matches(
                str(name).lower(), {field_name.lower(): field_name for field_name in fields}, n=1, cutoff=0.6
            )
            nearest = tuple(field for field in fields if field.lower() in close and value.get(field) is None)
            message = f"{format_value(str(name))} is not a field of {owner}. It has {', '.join(fields)}."
            yield Problem(f"{path}{str(name)[:MAX_LABEL_LENGTH]}", content, message, nearest)


def check_metadata(job: Any) -> Iterator[Problem]:
    """Check that the API server accepts the labels, annotations and namespace."""
    metadata = get_value(job, "metadata")
    if metadata is not None and not isinstance(metadata, dict):
        yield Problem("metadata", metadata, f"{format_value(metadata)} must be an object of fields.")
        return
    for field in ("labels", "annotations"):
        entries = get_value(metadata, field)
        if entries is not None and not isinstance(entries, dict):
            yield Problem(f"metadata.{field}", entries, f"{format_value(entries)} must be a map of text.")
        elif entries:
            yield from _check_labels_or_annotations(field, entries)
    namespace = get_value(metadata, "namespace")
    if namespace is not None and not isinstance(namespace, str):
        yield Problem("metadata.namespace", namespace, *_must_be_text(namespace))
    elif namespace and not _NAMESPACE.fullmatch(namespace):
        message = (
            f"{format_value(namespace)} must have at most {MAX_LABEL_LENGTH} lower-case letters, digits and `-`, and "
            "begin and end with a letter or a digit."
        )
        corrected = slug(namespace)[:MAX_LABEL_LENGTH].strip("-")
        yield Problem("metadata.namespace", namespace, message, (as_text(corrected),) if corrected else ())


def _check_labels_or_annotations(field: str, entries: dict[str, Any]) -> Iterator[Problem]:
    """Check labels or annotations."""
    for key, value in entries.items():
        path = f"metadata.{field}.{key}"
        is_label = field == "labels"
        if error := describe_label_key_error(str(key) if is_label else str(key).lower()):
            yield Problem(path, value, f"{format_value(str(key))} {error}")
        elif not isinstance(value, str):
            yield Problem(path, value, *_must_be_text(value))
        elif is_label and (not _LABEL.fullmatch(value) or len(value) > MAX_LABEL_LENGTH):
            message = (
                f"{format_value(value)} must have at most {MAX_LABEL_LENGTH} letters, digits, `-`, `_` and `.`, and "
                "begin and end with a letter or a digit."
            )
            corrected = re.sub(r"[^\w.-]+", "-", value, flags=re.ASCII)[:MAX_LABEL_LENGTH].strip("-_.")
            yield Problem(path, value, message, (as_text(corrected),) if corrected else ())
    size = sum(len(str(key).encode()) + len(str(value).encode()) for key, value in entries.items())
    if field == "annotations" and size > MAX_ANNOTATIONS:
        message = f"must have at most {MAX_ANNOTATIONS:,} bytes in total, but have {size:,}."
        yield Problem("metadata.annotations", None, message)


def check_missing_name(job: Any) -> Iterator[Problem]:
    """Yield the problem of a missing name, or of a name that is not a string."""
    name = get_value(job, "metadata", "name")
    if name is None or name == "":
        hint = "A TrainingJob must have a name."
        if get_text(job, "metadata", "generateName"):
            hint = "`kubectl apply` does not support `generateName`. Write a name, or use `kubectl create`."
        yield Problem("metadata.name", name, f"is missing. {hint}")
    else:
        message, nearest = _must_be_text(name)
        is_number = isinstance(name, int | float) and not isinstance(name, bool)
        yield Problem("metadata.name", name, message, (f"job-{slug(format_value(name))}",) if is_number else nearest)


def _must_be_text(value: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(value, bool):
        message, nearest = correct_boolean(value, "string", ())
        return f"{format_value(value)} {message}", nearest
    if isinstance(value, int | float):
        return f"{format_value(value)} must be text, not a number. Write quotes.", (as_text(format_value(value)),)
    return f"{format_value(value)} must be text.", ()


def warn_of_foreign_labels(job: Any) -> Iterator[Problem]:
    """Warn about labels and annotations of other tools, which have no effect on a TrainingJob."""
    for field in ("labels", "annotations"):
        entries = get_value(job, "metadata", field)
        for key, value in entries.items() if isinstance(entries, dict) else ():
            known = [
                label
                for label in FOREIGN_LABELS
                if key == label or (label.endswith("/") and str(key).startswith(label))
            ]
            if not known or (key == QUEUE_LABEL and value == get_value(job, "spec", "scheduling", "queueName")):
                continue
            message = f"has no effect on a TrainingJob. {FOREIGN_LABELS[max(known, key=len)]}"
            yield Problem(f"metadata.{field}.{key}", value, message)
