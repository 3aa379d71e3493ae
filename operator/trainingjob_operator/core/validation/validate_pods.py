"""Rules about pod fields that the API server or a kubelet would reject later.

They follow Kubernetes 1.36: `IsDNS1123Subdomain`, `IsQualifiedName` and `IsConfigMapKey` of apimachinery's
`util/validation`, `ValidatePodSpec`, and the description of `volumeMounts[].mountPath`. Images follow the grammar of
`distribution/reference`, by which a kubelet reports `InvalidImageName`.
"""

import re
from collections.abc import Iterator

from trainingjob_api.base import KeyRef
from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.pod_variables import SECRET_PARENTS, pod_variables
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.names import MAX_LABEL_LENGTH
from trainingjob_operator.core.validation.quantity import parse_bytes
from trainingjob_operator.core.validation.rule import Rule

MAX_MEMORY = "64Ti"
"""No machine has more memory."""
MAX_SUBDOMAIN = 253
MAX_REPOSITORY = 255
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_PART}(\.{_PART})*")
_DOMAIN = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(:[0-9]+)?"
)
_COMPONENT = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}


def check_image(spec: TrainingJobSpec) -> Iterator[Problem]:
    """An image must be a valid image reference."""
    image = spec.runtime.image
    if image and (error := describe_image_error(image)):
        corrected = _correct_image(image)
        nearest = (as_text(corrected),) if corrected != image and not describe_image_error(corrected) else ()
        yield Problem("spec.runtime.image", image, f"{format_value(image)} {error}", nearest)


def describe_image_error(image: str) -> str:
    """Return the correction that an image reference needs; empty if a kubelet can parse it."""
    if "://" in image:
        return "must not have a scheme. Write the registry without `https://`."
    name, separator, digest = image.partition("@")
    if separator and not _DIGEST.fullmatch(digest):
        return "must have a digest after `@`, such as `sha256:` and 64 hexadecimal digits."
    algorithm, _, digits = digest.partition(":")
    if separator and len(digits) != _DIGEST_LENGTHS.get(algorithm, len(digits)):
        return f"must have {_DIGEST_LENGTHS[algorithm]} hexadecimal digits after `{algorithm}:`, not {len(digits)}."
    repository, tag = _split_tag(name)
    if tag is not None and not _TAG.fullmatch(tag):
        return "must have a tag of at most 128 letters, digits, `_`, `.` and `-`, which does not begin with `.` or `-`."
    domain, path = _split_domain(repository)
    if domain and not _DOMAIN.fullmatch(domain):
        return f"must begin with a valid registry host and optional port, not with {format_value(domain)}."
    for part in path.split("/"):
        if _COMPONENT.fullmatch(part):
            continue
        if _COMPONENT.fullmatch(part.lower()):
            return f"must have a lower-case repository, but has {format_value(part)}."
        return (
            "must have repository parts of lower-case letters and digits, separated by `.`, `_` or `-`, but has "
            f"{format_value(part)}."
        )
    if len(path) > MAX_REPOSITORY:
        return f"must have a repository of at most {MAX_REPOSITORY} characters, but has {len(path)}."
    is_id = re.fullmatch(r"[a-f0-9]{64}", repository)
    return "must not be only the id of an image. Write the repository and `@sha256:` before it." if is_id else ""


def _split_tag(name: str) -> tuple[str, str | None]:
    """Return a name and its tag. A colon before the last slash belongs to a port."""
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    return f"{head}{slash}{last}", tag if colon else None


def _split_domain(repository: str) -> tuple[str, str]:
    """Return the registry and the rest of a repository. A registry has a dot, a port or capitals, or is `localhost`."""
    first, slash, rest = repository.partition("/")
    is_domain = slash and ("." in first or ":" in first or first == "localhost" or first.lower() != first)
    return (first, rest) if is_domain else ("", repository)


def _correct_image(image: str) -> str:
    reference = image.partition("://")[2] if "://" in image else image
    name, separator, digest = reference.partition("@")
    repository, tag = _split_tag(name)
    domain, path = _split_domain(repository)
    path = re.sub(r"/{2,}", "/", path.lower().strip("/"))
    domain = f"{domain}/" if domain else ""
    return f"{domain}{path}" + (f":{tag}" if tag else "") + f"{separator}{digest}"


def check_object_names(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Names of other objects must be valid object names (DNS-1123 subdomains)."""
    runtime, scheduling = spec.runtime, spec.scheduling
    names = {
        "runtime.serviceAccountName": runtime.service_account_name,
        "scheduling.queueName": scheduling.queue_name,
        "scheduling.priorityClassName": scheduling.priority_class_name,
        **{f"runtime.imagePullSecrets[{number}]": name for number, name in enumerate(runtime.image_pull_secrets)},
        **{f"runtime.volumes[{number}].claimName": volume.claim_name for number, volume in enumerate(runtime.volumes)},
    }
    names |= {f"{path}.name": reference.name for path, reference in _references(spec)}
    for path, name in names.items():
        if name is not None and not _SUBDOMAIN.fullmatch(name):
            message = (
                f"{format_value(name)} must have a letter or a digit on both sides of each dot, like every object name."
            )
            corrected = ".".join(part for label_part in name.split(".") if (part := label_part.strip("-")))
            yield Problem(f"spec.{path}", name, message, (as_text(corrected),))


def check_queue_name(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A queue name must have at most 63 characters, because it becomes a label value."""
    queue = spec.scheduling.queue_name
    if queue is not None and len(queue) > MAX_LABEL_LENGTH:
        message = (
            f"{format_value(queue)} must have at most {MAX_LABEL_LENGTH} characters, but has {len(queue)}. It becomes "
            "a label value."
        )
        yield Problem("spec.scheduling.queueName", queue, message)


def check_topology_request(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A level of Kueue's Topology needs a queue, and Kueue accepts one request for the pods of a JobSet."""
    scheduling = spec.scheduling
    levels = {"requiredTopology": scheduling.required_topology, "preferredTopology": scheduling.preferred_topology}
    for field, level in levels.items():
        if level is not None and scheduling.queue_name is None:
            message = (
                f"{format_value(level)} must not be set without `spec.scheduling.queueName`: only Kueue reads it. Set "
                "the queue, or use `spec.scheduling.exclusiveTopology`."
            )
            yield Problem(f"spec.scheduling.{field}", level, message)
    if None not in levels.values():
        level = scheduling.preferred_topology
        message = f"{format_value(level)} must not be set with `spec.scheduling.requiredTopology`. Remove one of them."
        yield Problem("spec.scheduling.preferredTopology", level, message)


def check_label_keys(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Label keys must be valid: a name, with an optional domain and `/` before it."""
    scheduling = spec.scheduling
    keys = {
        **{f"nodeSelector.{key}": key for key in scheduling.node_selector},
        **{f"tolerations[{number}].key": toleration.key for number, toleration in enumerate(scheduling.tolerations)},
        "exclusiveTopology": scheduling.exclusive_topology,
        "requiredTopology": scheduling.required_topology,
        "preferredTopology": scheduling.preferred_topology,
    }
    for path, key in keys.items():
        if key is not None and (error := describe_label_key_error(key)):
            yield Problem(f"spec.scheduling.{path}", key, f"{format_value(key)} {error}")


def describe_label_key_error(key: str) -> str:
    """Return the correction that the key of a label or an annotation needs (`IsQualifiedName`)."""
    prefix, slash, name = key.rpartition("/")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", name):
        return (
            "must be letters, digits, `-`, `_` and `.`, with an optional domain before it, such as `example.com/disk`."
        )
    if len(name) > MAX_LABEL_LENGTH:
        return f"must have at most {MAX_LABEL_LENGTH} characters after `/`, but has {len(name)}."
    if slash and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > MAX_SUBDOMAIN):
        return "must have a valid lower-case domain before `/`, such as `example.com`."
    return ""


def check_reference_keys(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Keys must be valid keys of a Secret or ConfigMap."""
    for path, reference in _references(spec):
        if reference.key == "." or reference.key.startswith(".."):
            message = (
                f"{format_value(reference.key)} must not be `.` or begin with `..`. Secrets and ConfigMaps cannot "
                "have such a key."
            )
            yield Problem(f"spec.{path}.key", reference.key, message)


def _references(spec: TrainingJobSpec) -> Iterator[tuple[str, KeyRef]]:
    """Yield each reference to a Secret or ConfigMap, with its path."""
    for path, variable in pod_variables(spec):
        for field, reference in (
            ("secretKeyRef", variable.secret_key_ref),
            ("configMapKeyRef", variable.config_map_key_ref),
        ):
            if reference is not None:
                yield f"{path}.{field}", reference


def check_mount_paths(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Mount paths must not contain `:`."""
    for number, volume in enumerate(spec.runtime.volumes):
        if ":" in volume.mount_path:
            message = f"{volume.mount_path} must not contain `:`."
            nearest = (volume.mount_path.replace(":", "-"),)
            yield Problem(f"spec.runtime.volumes[{number}].mountPath", volume.mount_path, message, nearest)


def check_memory(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`resources.memory` must be at most 64Ti."""
    yield from _check_memory("spec.runtime.resources.memory", spec.runtime.resources.memory)


def check_prepare_memory(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`data.prepare.resources.memory` must be at most 64Ti."""
    if spec.data.prepare:
        yield from _check_memory("spec.data.prepare.resources.memory", spec.data.prepare.resources.memory)


def _check_memory(path: str, memory: str) -> Iterator[Problem]:
    if parse_bytes(memory) > parse_bytes(MAX_MEMORY):
        message = f"{memory} must be at most {MAX_MEMORY}, because no machine has more. 1 `Gi` is 1024 `Mi`."
        yield Problem(path, memory, message, (MAX_MEMORY,))


RULES = (
    Rule(("runtime.image",), check_image),
    Rule(("runtime", "scheduling", *SECRET_PARENTS), check_object_names),
    Rule(("scheduling.queueName",), check_queue_name),
    Rule(
        ("scheduling.queueName", "scheduling.requiredTopology", "scheduling.preferredTopology"), check_topology_request
    ),
    Rule(("scheduling",), check_label_keys),
    Rule(("runtime.env", *SECRET_PARENTS), check_reference_keys),
    Rule(("runtime.volumes",), check_mount_paths),
    Rule(("runtime.resources.memory",), check_memory),
    Rule(("data.prepare",), check_prepare_memory),
)
