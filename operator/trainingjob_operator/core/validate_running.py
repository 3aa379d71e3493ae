"""Rules about storage, pods, scheduling and elasticity."""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from trainingjob_api.base import MAX_PATH, MAX_SHORT_NAME, seconds
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem
from trainingjob_api.running import Elastic, EnvVar
from trainingjob_operator.core.folders import is_below, is_reserved
from trainingjob_operator.core.hardware import Hardware
from trainingjob_operator.core.names import free_name
from trainingjob_operator.core.quantity import parse_bytes, parse_quantity
from trainingjob_operator.core.rule import HardwareRule, Rule

RESERVED_ENV = (
    "TRAININGJOB_",
    "MEGASCALE_",
    "JAX_COORDINATOR_",
    "JAX_NUM_PROCESSES",
    "JAX_PLATFORMS",
    "JAX_PROCESS_ID",
)
"""Beginnings of names that say what a world is, and which devices it has: that follows from the plan."""
SECRET_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY")
DEVICE_COUNT_FLAG = "xla_force_host_platform_device_count"
MIN_MEMORY = "256Mi"
"""Python with JAX does not start on less."""
MIN_SILENCE = 2
"""Seconds. Agents report about once a second."""


def check_checkpoint_uri(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Checkpoints must outlive the pod: they lie in a folder of a writable volume."""
    uri = PurePosixPath(spec.checkpoint.uri)
    mounts = [volume for volume in spec.runtime.volumes if uri.is_relative_to(volume.mount_path)]
    volume = max(mounts, key=lambda volume: len(PurePosixPath(volume.mount_path).parts), default=None)
    path, name = "spec.checkpoint.uri", uri.name or "run"
    nearest = tuple(f"{mount.rstrip('/')}/{name}" for mount in _writable_mounts(spec))
    if ".." in uri.parts:
        yield Problem(path, str(uri), f"{uri} steps upwards: name the folder itself.")
    elif volume is None:
        message = f"{uri} is on none of spec.runtime.volumes: checkpoints there would end with the pod."
        if not nearest:
            message += " Mount a PersistentVolumeClaim that all hosts share, and name a folder below it."
        yield Problem(path, str(uri), message, nearest)
    elif volume.read_only:
        yield Problem(path, str(uri), f"{uri} is on the volume {volume.name}, which is mounted read-only.", nearest)
    elif len(uri.parts) < 3 or uri == PurePosixPath(volume.mount_path):
        message = f"{uri} is the top of a volume: a job owns its folder alone, so give it one below."
        yield Problem(path, str(uri), message, (f"{volume.mount_path.rstrip('/')}/run",))


def check_volumes(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Volumes have names and mount paths of their own, away from the pod's."""
    taken = {volume.name for volume in spec.runtime.volumes}
    for number, volume in enumerate(spec.runtime.volumes):
        at, earlier = f"spec.runtime.volumes[{number}]", spec.runtime.volumes[:number]
        nearest = (_free_mount(spec, volume.name),)
        mount = PurePosixPath(volume.mount_path)
        if volume.name in {one.name for one in earlier}:
            message = f"{volume.name} is the name of another volume."
            free = free_name(volume.name, taken, MAX_SHORT_NAME)
            taken.add(free)
            yield Problem(f"{at}.name", volume.name, message, (free,))
        if ".." in mount.parts:
            yield Problem(f"{at}.mountPath", volume.mount_path, f"{mount} steps upwards: name the folder itself.")
        elif is_reserved(volume.mount_path):
            message = f"{mount} belongs to the pod itself."
            yield Problem(f"{at}.mountPath", volume.mount_path, message, nearest)
        elif mount in {PurePosixPath(one.mount_path) for one in earlier}:
            message = f"{mount} is the mount path of another volume."
            yield Problem(f"{at}.mountPath", volume.mount_path, message, nearest)


def check_compile_cache(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Compiled programs need a folder that can be written."""
    path, writable = spec.runtime.compile_cache.path, _writable_mounts(spec)
    if path is None:
        return
    if ".." in PurePosixPath(path).parts or not any(is_below(path, mount) for mount in writable):
        message = f"{path} is on no writable volume of spec.runtime.volumes; leave it out to use one of the pod's own."
        nearest = tuple(f"{mount.rstrip('/')}/compile-cache" for mount in writable)
        yield Problem("spec.runtime.compileCache.path", path, message, nearest)


def check_tokenizer_path(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The tokenizer is named by where it is."""
    path = spec.tokenizer.path
    if path is not None and ".." in PurePosixPath(path).parts:
        yield Problem("spec.tokenizer.path", path, f"{path} steps upwards: name the file itself.")


def check_env(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each variable has one name, one value, and none of those that make worlds."""
    for number, variable in enumerate(spec.runtime.env):
        at = f"spec.runtime.env[{number}]"
        given = _given(variable)
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has no value"
            message = f"{variable.name} {found}: write exactly one of value, secretKeyRef and configMapKeyRef."
            yield Problem(at, variable.name, message)
        if variable.name.startswith(RESERVED_ENV):
            message = f"{variable.name} says what a world is, and worlds are formed by the operator: leave it out."
            yield Problem(f"{at}.name", variable.name, message)
        if variable.name in {earlier.name for earlier in spec.runtime.env[:number]}:
            yield Problem(f"{at}.name", variable.name, f"{variable.name} is set twice; keep one of the two.")


def check_resources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A host needs some CPU, and enough memory to start."""
    cpu, memory = spec.runtime.resources.cpu, spec.runtime.resources.memory
    if parse_quantity(cpu) == 0:
        yield Problem("spec.runtime.resources.cpu", cpu, f"{cpu} is none: a host needs some CPU.", ("100m", "1"))
    elif parse_quantity(cpu) > 1024:
        message = f"{cpu} is more cores than a machine has: 1 is one core, 500m is half a core."
        yield Problem("spec.runtime.resources.cpu", cpu, message)
    if parse_bytes(memory) < parse_bytes(MIN_MEMORY):
        message = f"{memory} is too little: the trainer does not start on less than {MIN_MEMORY}."
        yield Problem("spec.runtime.resources.memory", memory, message, (MIN_MEMORY,))


def check_pull_secrets(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Pull secrets are a set to the API server."""
    secrets: Sequence[str] = spec.runtime.image_pull_secrets
    for number, secret in enumerate(secrets):
        if secret in secrets[:number]:
            yield Problem(f"spec.runtime.imagePullSecrets[{number}]", secret, f"{secret} is in the list twice.")


def check_tolerations(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Tolerations must be ones that the API server takes; a pod that it refuses would never be seen."""
    for number, toleration in enumerate(spec.scheduling.tolerations):
        at = f"spec.scheduling.tolerations[{number}]"
        if toleration.operator == "Exists" and toleration.value:
            message = f"{toleration.value} is not compared by Exists: leave it out, or write operator: Equal."
            nearest = (f"{at}.operator: Equal",) if toleration.key else ()
            yield Problem(f"{at}.value", toleration.value, message, nearest)
        if toleration.operator == "Equal" and toleration.key is None:
            message = "is missing: Equal compares one taint. Operator Exists without a key tolerates every taint."
            yield Problem(f"{at}.key", None, message)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            message = "only goes with effect: NoExecute."
            nearest = (f"{at}.effect: NoExecute",)
            yield Problem(f"{at}.tolerationSeconds", toleration.toleration_seconds, message, nearest)


def check_node_selector(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The accelerator's own node labels follow from `slices`."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    for key, value in shape.node_labels if shape else ():
        written = spec.scheduling.node_selector.get(key, value)
        if written != value:
            message = f"{written} contradicts spec.slices, from which {value} follows; leave it out."
            yield Problem(f"spec.scheduling.nodeSelector.{key}", written, message, (value,))


def check_silence(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A host cannot be silent sooner than it would have spoken."""
    silence = spec.elastic.silence_after
    if seconds(silence) < MIN_SILENCE:
        message = f"{silence} is too short: a healthy host reports about once a second."
        yield Problem("spec.elastic.silenceAfter", silence, message, (f"{MIN_SILENCE}s",))


def warn_of_idle_cooldown(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job of a fixed size never grows."""
    cooldown = spec.elastic.grow_cooldown
    if spec.slices.count is not None and seconds(cooldown) != seconds(Elastic().grow_cooldown):
        message = f"{cooldown} has no effect: a job with `count` never grows; `min` and `max` make it elastic."
        yield Problem("spec.elastic.growCooldown", cooldown, message)


def warn_of_idle_cache_path(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Programs that are not kept need no folder."""
    cache = spec.runtime.compile_cache
    if cache.path is not None and not cache.enabled:
        message = f"{cache.path} has no effect while the cache is off."
        yield Problem(
            "spec.runtime.compileCache.path", cache.path, message, ("spec.runtime.compileCache.enabled: true",)
        )


def warn_of_moving_image(spec: TrainingJobSpec) -> Iterator[Problem]:
    """All hosts of a world must run one program, also those that come later."""
    image = spec.runtime.image or ""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if image and not digest and tag in ("", "latest"):
        message = f"{image} may be another image tomorrow, when a lost host comes back: name a version or a digest."
        yield Problem("spec.runtime.image", image, message)


def warn_of_plain_secrets(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Whoever may read the job may read a secret that stands in it."""
    for number, variable in enumerate(spec.runtime.env):
        if variable.value and variable.name.upper().endswith(SECRET_ENDINGS):
            message = f"{variable.name} looks like a secret, and the job can be read by many: take it by secretKeyRef."
            yield Problem(f"spec.runtime.env[{number}].value", None, message)


def warn_of_idle_flags(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The devices of a host follow from the slices."""
    for number, variable in enumerate(spec.runtime.env):
        if variable.name == "XLA_FLAGS" and DEVICE_COUNT_FLAG in (variable.value or ""):
            message = f"--{DEVICE_COUNT_FLAG} has no effect: the devices of a host follow from spec.slices.topology."
            yield Problem(f"spec.runtime.env[{number}].value", variable.value, message)


def _writable_mounts(spec: TrainingJobSpec) -> list[str]:
    """Return where files can be written that outlive the pod."""
    return [one.mount_path for one in spec.runtime.volumes if not (one.read_only or is_reserved(one.mount_path))]


def _free_mount(spec: TrainingJobSpec, name: str) -> str:
    """Return a mount path for a volume that no other one has."""
    taken = {str(PurePosixPath(volume.mount_path)) for volume in spec.runtime.volumes}
    path = f"/mnt/{name}"
    return free_name(path, taken, MAX_PATH) if path in taken else path


def _given(variable: EnvVar) -> list[str]:
    values = {
        "value": variable.value,
        "secretKeyRef": variable.secret_key_ref,
        "configMapKeyRef": variable.config_map_key_ref,
    }
    return [name for name, value in values.items() if value is not None]


_MOUNTS = "runtime.volumes"

RULES: tuple[Rule | HardwareRule, ...] = (
    Rule(("checkpoint.uri", _MOUNTS), check_checkpoint_uri),
    Rule((_MOUNTS,), check_volumes),
    Rule(("runtime.compileCache.path", _MOUNTS), check_compile_cache),
    Rule(("tokenizer.path",), check_tokenizer_path),
    Rule(("runtime.env",), check_env),
    Rule(("runtime.resources",), check_resources),
    Rule(("runtime.imagePullSecrets",), check_pull_secrets),
    Rule(("scheduling.tolerations",), check_tolerations),
    HardwareRule(("slices.accelerator", "slices.topology", "scheduling.nodeSelector"), check_node_selector),
    Rule(("elastic.silenceAfter",), check_silence),
)
WARNINGS = (
    Rule(("slices.count", "elastic.growCooldown"), warn_of_idle_cooldown),
    Rule(("runtime.compileCache",), warn_of_idle_cache_path),
    Rule(("runtime.image",), warn_of_moving_image),
    Rule(("runtime.env",), warn_of_plain_secrets),
    Rule(("runtime.env",), warn_of_idle_flags),
)
