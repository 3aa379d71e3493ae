"""Rules about pods, scheduling and elasticity."""

from collections.abc import Iterator, Sequence

from trainingjob_api.base import seconds
from trainingjob_api.problem import Problem
from trainingjob_api.spec.elastic import Elastic
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import EnvVar
from trainingjob_api.variables import SLICE_VARIABLES, WORLD_FLAGS, WORLD_VARIABLES
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.validation.quantity import parse_bytes, parse_quantity
from trainingjob_operator.core.validation.rule import HardwareRule, Rule

OPERATOR_ENV_PREFIX = "TRAININGJOB_"
"""Prefix of the variables that the operator sets for its agents."""
LIBTPU_FLAGS = "LIBTPU_INIT_ARGS"
SECRET_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY")
DEVICE_COUNT_FLAG = "xla_force_host_platform_device_count"
MIN_MEMORY = "256Mi"
"""Python with JAX does not start with less."""
MIN_HEARTBEAT_TIMEOUT = 2
"""Seconds. Agents report about once a second."""


def check_env(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each variable has one name, one value, and none of those that make worlds or slices."""
    for number, variable in enumerate(spec.runtime.env):
        at = f"spec.runtime.env[{number}]"
        sources = _value_sources(variable)
        if len(sources) != 1:
            sources_text = f"has {' and '.join(sources)}" if sources else "has no value"
            message = f"{variable.name} {sources_text}: write exactly one of value, secretKeyRef and configMapKeyRef."
            yield Problem(at, variable.name, message)
        if variable.name.startswith((OPERATOR_ENV_PREFIX, *WORLD_VARIABLES)):
            message = f"{variable.name} says what a world is, and worlds are formed by the operator: leave it out."
            yield Problem(f"{at}.name", variable.name, message)
        if variable.name.startswith(SLICE_VARIABLES):
            message = f"{variable.name} says what a slice is, and its nodes know that best: leave it out."
            yield Problem(f"{at}.name", variable.name, message)
        for flag in _world_flags(variable):
            message = f"--{flag} says what a world is, and worlds are formed by the operator: leave it out."
            yield Problem(f"{at}.value", variable.value, message)
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


def check_heartbeat_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A host cannot be silent sooner than it would have spoken."""
    heartbeat_timeout = spec.elastic.heartbeat_timeout
    if seconds(heartbeat_timeout) < MIN_HEARTBEAT_TIMEOUT:
        message = f"{heartbeat_timeout} is too short: a healthy host reports about once a second."
        yield Problem("spec.elastic.heartbeatTimeout", heartbeat_timeout, message, (f"{MIN_HEARTBEAT_TIMEOUT}s",))


def check_progress_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A host that falls silent must be known as silent before its world counts as hanging."""
    progress_timeout, silence = spec.elastic.progress_timeout, spec.elastic.heartbeat_timeout
    if progress_timeout is not None and seconds(progress_timeout) <= seconds(silence):
        message = (
            f"{progress_timeout} must be longer than spec.elastic.heartbeatTimeout, {silence}: "
            "a silent host is no hang."
        )
        yield Problem("spec.elastic.progressTimeout", progress_timeout, message, (f"{seconds(silence) + 1}s",))


def check_hot_standby_platform(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """A shadow world shares processors with the world that trains; other devices have one owner."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    if spec.elastic.hot_standby and shape and shape.platform != "cpu":
        message = (
            f"needs spec.slices.accelerator: cpu. On {spec.slices.accelerator} one process owns the devices, and that "
            "one trains; a standby is there in any case."
        )
        yield Problem("spec.elastic.hotStandby", True, message, ("false",))  # noqa: FBT003  # the value of the field


def check_hot_standby_requirements(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A shadow world waits at a smaller size, with the programs that were compiled ahead for it."""
    if not spec.elastic.hot_standby:
        return
    if spec.slices.count is not None:
        message = "needs a smaller size to shrink to: a job with `count` has none; `min` and `max` make it elastic."
        yield Problem("spec.elastic.hotStandby", True, message, ("false",))  # noqa: FBT003
    if not spec.runtime.compile_cache.enabled:
        message = "needs spec.runtime.compileCache.enabled: it waits with the programs that are compiled ahead."
        nearest = ("false", "spec.runtime.compileCache.enabled: true")
        yield Problem("spec.elastic.hotStandby", True, message, nearest)  # noqa: FBT003


def warn_of_unused_cooldown(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job of a fixed size never grows."""
    cooldown = spec.elastic.grow_cooldown
    if spec.slices.count is not None and seconds(cooldown) != seconds(Elastic().grow_cooldown):
        message = f"{cooldown} has no effect: a job with `count` never grows; `min` and `max` make it elastic."
        yield Problem("spec.elastic.growCooldown", cooldown, message)


def warn_of_unused_shrink_after(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Only a job that waits for repairs can wait too long."""
    elastic, default = spec.elastic, Elastic()
    if elastic.policy == "shrink" and seconds(elastic.shrink_after) != seconds(default.shrink_after):
        message = f"{elastic.shrink_after} has no effect: with `policy: shrink` a job shrinks at once."
        yield Problem("spec.elastic.shrinkAfter", elastic.shrink_after, message)


def warn_of_unused_hot_standby(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A shadow world takes over where a world shrinks, and at once."""
    if not spec.elastic.hot_standby or spec.slices.count is not None:
        return
    if (
        len(spec.slices.slice_counts) < 2
    ):  # no problem: an edit of the bounds may be undone, and this field is immutable
        message = "has no effect while spec.slices allows only one number of slices."
        yield Problem("spec.elastic.hotStandby", True, message)  # noqa: FBT003
    elif spec.elastic.policy != "shrink":
        policy = f"`policy: {spec.elastic.policy}`"
        message = f"serves planned changes alone: with {policy} the slice that was lost is waited for first."
        yield Problem("spec.elastic.hotStandby", True, message)  # noqa: FBT003


def warn_of_mutable_tag(spec: TrainingJobSpec) -> Iterator[Problem]:
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


def warn_of_unused_flags(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The devices of a host follow from the slices."""
    for number, variable in enumerate(spec.runtime.env):
        if variable.name == "XLA_FLAGS" and DEVICE_COUNT_FLAG in (variable.value or ""):
            message = f"--{DEVICE_COUNT_FLAG} has no effect: the devices of a host follow from spec.slices.topology."
            yield Problem(f"spec.runtime.env[{number}].value", variable.value, message)


def _world_flags(variable: EnvVar) -> list[str]:
    """Return the flags with which a variable would configure a world."""
    words = (variable.value or "").split() if variable.name == LIBTPU_FLAGS else []
    return [flag for word in words if (flag := word.partition("=")[0].lstrip("-")) in WORLD_FLAGS]


def _value_sources(variable: EnvVar) -> list[str]:
    values = {
        "value": variable.value,
        "secretKeyRef": variable.secret_key_ref,
        "configMapKeyRef": variable.config_map_key_ref,
    }
    return [name for name, value in values.items() if value is not None]


RULES: tuple[Rule | HardwareRule, ...] = (
    Rule(("runtime.env",), check_env),
    Rule(("runtime.resources",), check_resources),
    Rule(("runtime.imagePullSecrets",), check_pull_secrets),
    Rule(("scheduling.tolerations",), check_tolerations),
    HardwareRule(("slices.accelerator", "slices.topology", "scheduling.nodeSelector"), check_node_selector),
    Rule(("elastic.heartbeatTimeout",), check_heartbeat_timeout),
    Rule(("elastic.progressTimeout", "elastic.heartbeatTimeout"), check_progress_timeout),
    HardwareRule(("slices.accelerator", "slices.topology", "elastic.hotStandby"), check_hot_standby_platform),
    Rule(("slices.count", "elastic.hotStandby", "runtime.compileCache"), check_hot_standby_requirements),
)
WARNINGS = (
    Rule(("slices.count", "elastic.growCooldown"), warn_of_unused_cooldown),
    Rule(("elastic.policy", "elastic.shrinkAfter"), warn_of_unused_shrink_after),
    Rule(("slices", "elastic.policy", "elastic.hotStandby"), warn_of_unused_hot_standby),
    Rule(("runtime.image",), warn_of_mutable_tag),
    Rule(("runtime.env",), warn_of_plain_secrets),
    Rule(("runtime.env",), warn_of_unused_flags),
)
