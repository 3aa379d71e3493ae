"""Rules about pods, scheduling and elasticity."""

from collections.abc import Iterator

from trainingjob_api.base import seconds
from trainingjob_api.pod_variables import SECRET_PARENTS, secret_variables
from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import PrepareResources
from trainingjob_api.spec.elastic import FAULT_LIFETIME_SECONDS, Elastic
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import EnvVar, Resources
from trainingjob_api.spec.scheduling import START_TIMEOUT
from trainingjob_api.variables import SLICE_VARIABLES, WORLD_FLAGS, WORLD_VARIABLES
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.problem_messages import has_no_effect, join_words, must_be_unique, quote_field
from trainingjob_operator.core.validation.quantity import parse_bytes, parse_quantity
from trainingjob_operator.core.validation.rule import HardwareRule, Rule, find_repeated

OPERATOR_ENV_PREFIX = "TRAININGJOB_"
"""Prefix of the variables that the operator sets for its agents."""
LIBTPU_FLAGS = "LIBTPU_INIT_ARGS"
SECRET_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY")
DEVICE_COUNT_FLAG = "xla_force_host_platform_device_count"
MIN_MEMORY = "256Mi"
"""Python with JAX does not start with less."""
MIN_HEARTBEAT_TIMEOUT = 2
"""Seconds. Agents report about once a second."""
MIN_START_TIMEOUT = 30
"""Seconds. The JobSet controller and the scheduler need some of them for the pods of a large job."""


def check_env(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each variable must have a unique name and one value, and must not configure a world or a slice."""
    secrets = {variable.name: path for path, variable in secret_variables(spec)}
    for number, variable in enumerate(spec.runtime.env):
        variable_path = f"spec.runtime.env[{number}]"
        sources = _value_sources(variable)
        if len(sources) != 1:
            found = join_words(f"`{source}`" for source in sources) if sources else "none"
            choices = "`value`, `secretKeyRef` and `configMapKeyRef`"
            message = f"{variable.name} must have exactly one of {choices}, but has {found}."
            yield Problem(variable_path, variable.name, message)
        if variable.name.startswith((OPERATOR_ENV_PREFIX, *WORLD_VARIABLES)):
            message = f"{variable.name} must not be set, because the operator configures worlds. Remove it."
            yield Problem(f"{variable_path}.name", variable.name, message)
        if variable.name.startswith(SLICE_VARIABLES):
            message = f"{variable.name} must not be set, because the nodes of a slice set it. Remove it."
            yield Problem(f"{variable_path}.name", variable.name, message)
        for flag in _world_flags(variable):
            message = f"--{flag} must not be set, because the operator configures worlds. Remove it."
            yield Problem(f"{variable_path}.value", variable.value, message)
        if owner := secrets.get(variable.name):
            message = f"{variable.name} must not be set beside spec.{owner}, which sets it. Remove one of the two."
            yield Problem(f"{variable_path}.name", variable.name, message)
        if variable.name in {earlier.name for earlier in spec.runtime.env[:number]}:
            message = must_be_unique(variable.name, "an earlier variable")
            yield Problem(f"{variable_path}.name", variable.name, message)


def check_resources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A host must have CPU, and enough memory to start."""
    yield from _check_pod_resources("spec.runtime.resources", spec.runtime.resources)


def check_prepare_resources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A pod that tokenizes text must have CPU, and enough memory to start."""
    if spec.data.prepare:
        yield from _check_pod_resources("spec.data.prepare.resources", spec.data.prepare.resources)


def _check_pod_resources(path: str, resources: Resources | PrepareResources) -> Iterator[Problem]:
    cpu, memory = resources.cpu, resources.memory
    if parse_quantity(cpu) == 0:
        yield Problem(f"{path}.cpu", cpu, f"{cpu} must be greater than 0.", ("100m", "1"))
    elif parse_quantity(cpu) > 1024:
        message = f"{cpu} must be at most 1024 cores. 1 is one core, and 500m is half a core."
        yield Problem(f"{path}.cpu", cpu, message)
    if parse_bytes(memory) < parse_bytes(MIN_MEMORY):
        message = f"{memory} must be at least {MIN_MEMORY}. The trainer does not start with less."
        yield Problem(f"{path}.memory", memory, message, (MIN_MEMORY,))


def check_pull_secrets(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Pull secrets must be unique."""
    yield from find_repeated("spec.runtime.imagePullSecrets", spec.runtime.image_pull_secrets)


def check_tolerations(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Tolerations must be valid for the API server, which otherwise rejects the pods."""
    for number, toleration in enumerate(spec.scheduling.tolerations):
        toleration_path = f"spec.scheduling.tolerations[{number}]"
        if toleration.operator == "Exists" and toleration.value:
            message = (
                f"{toleration.value} must not be set with `operator: Exists`, which compares no value. Remove it, or "
                "write `operator: Equal`."
            )
            nearest = (f"{toleration_path}.operator: Equal",) if toleration.key else ()
            yield Problem(f"{toleration_path}.value", toleration.value, message, nearest)
        if toleration.operator == "Equal" and toleration.key is None:
            message = (
                "must be set with `operator: Equal`, which compares one taint. `operator: Exists` without a key "
                "tolerates every taint."
            )
            yield Problem(f"{toleration_path}.key", None, message)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            message = "must not be set without `effect: NoExecute`."
            nearest = (f"{toleration_path}.effect: NoExecute",)
            yield Problem(f"{toleration_path}.tolerationSeconds", toleration.toleration_seconds, message, nearest)


def check_node_selector(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """A node selector must not contradict the accelerator's node labels, which follow from `slices`."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    for key, value in shape.node_labels if shape else ():
        selected = spec.scheduling.node_selector.get(key, value)
        if selected != value:
            message = f"{selected} must be {value}, which follows from `spec.slices`. Remove the label."
            yield Problem(f"spec.scheduling.nodeSelector.{key}", selected, message, (value,))


def check_heartbeat_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`elastic.heartbeatTimeout` must be at least 2s, because hosts report about once a second."""
    heartbeat_timeout = spec.elastic.heartbeat_timeout
    if seconds(heartbeat_timeout) < MIN_HEARTBEAT_TIMEOUT:
        bound = f"at least {MIN_HEARTBEAT_TIMEOUT}s"
        message = f"{heartbeat_timeout} must be {bound}. A healthy host reports about once a second."
        yield Problem("spec.elastic.heartbeatTimeout", heartbeat_timeout, message, (f"{MIN_HEARTBEAT_TIMEOUT}s",))


def check_node_probation(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`elastic.nodeProbation` must be greater than 0s and at most 24h: the operator then forgets a fault."""
    probation = spec.elastic.node_probation
    if not 0 < seconds(probation) <= FAULT_LIFETIME_SECONDS:
        message = f"{probation} must be greater than 0s and at most 24h. The operator discards a fault after a day."
        yield Problem("spec.elastic.nodeProbation", probation, message, ("24h" if seconds(probation) else "1s",))


def check_progress_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`elastic.progressTimeout` must be greater than `elastic.heartbeatTimeout`."""
    progress_timeout, silence = spec.elastic.progress_timeout, spec.elastic.heartbeat_timeout
    if progress_timeout is not None and seconds(progress_timeout) <= seconds(silence):
        message = (
            f"{progress_timeout} must be greater than {quote_field('spec.elastic.heartbeatTimeout', silence)}, so that "
            "a lost heartbeat is detected before a hang."
        )
        yield Problem("spec.elastic.progressTimeout", progress_timeout, message, (f"{seconds(silence) + 1}s",))


def check_hot_standby_platform(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """`elastic.hotStandby` requires `slices.accelerator: cpu`, because one process owns other devices."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    if spec.elastic.hot_standby and shape and shape.platform != "cpu":
        message = (
            f"must not be set without `spec.slices.accelerator: cpu`. On {spec.slices.accelerator} the training "
            "process owns the devices. Every host has a standby process without this field."
        )
        yield Problem("spec.elastic.hotStandby", True, message, ("false",))  # noqa: FBT003  # the value of the field


def check_hot_standby_requirements(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`elastic.hotStandby` requires an elastic size and the compile cache."""
    if not spec.elastic.hot_standby:
        return
    if spec.slices.count is not None:
        message = "must not be set with `count`, which allows no smaller size. Set `min` and `max` for an elastic size."
        yield Problem("spec.elastic.hotStandby", True, message, ("false",))  # noqa: FBT003
    if not spec.runtime.compile_cache.enabled:
        message = (
            "must not be set without `spec.runtime.compileCache.enabled`. A hot standby world loads programs that were "
            "compiled ahead."
        )
        nearest = ("false", "spec.runtime.compileCache.enabled: true")
        yield Problem("spec.elastic.hotStandby", True, message, nearest)  # noqa: FBT003


def warn_of_unused_cooldown(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`elastic.growCooldown` has no effect on a job of a fixed size."""
    cooldown = spec.elastic.grow_cooldown
    if spec.slices.count is not None and seconds(cooldown) != seconds(Elastic().grow_cooldown):
        message = (
            f"{has_no_effect('a job with `count` never grows', cooldown)} Set `min` and `max` for an elastic size."
        )
        yield Problem("spec.elastic.growCooldown", cooldown, message)


def warn_of_unused_shrink_after(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`elastic.shrinkAfter` has no effect with `policy: shrink`."""
    elastic, default = spec.elastic, Elastic()
    if elastic.policy == "shrink" and seconds(elastic.shrink_after) != seconds(default.shrink_after):
        message = has_no_effect("a job with `policy: shrink` shrinks at once", elastic.shrink_after)
        yield Problem("spec.elastic.shrinkAfter", elastic.shrink_after, message)


def check_start_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`scheduling.startTimeout` must leave the scheduler time for all pods of a job."""
    timeout = spec.scheduling.start_timeout
    if seconds(timeout) < MIN_START_TIMEOUT:
        message = (
            f"{timeout} must be at least {MIN_START_TIMEOUT}s. Pods that are still being created and "
            "scheduled would be released."
        )
        yield Problem("spec.scheduling.startTimeout", timeout, message, (f"{MIN_START_TIMEOUT}s",))


def check_ready_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`scheduling.readyTimeout` needs a queue, and must leave Kueue's pods time to start."""
    timeout, path = spec.scheduling.ready_timeout, "spec.scheduling.readyTimeout"
    if timeout is None:
        return
    if spec.scheduling.queue_name is None:
        message = (
            f"{timeout} must not be set without `spec.scheduling.queueName`: only Kueue reads it. Set the queue, or "
            "use `spec.scheduling.startTimeout`."
        )
        yield Problem(path, timeout, message)
    if seconds(timeout) < MIN_START_TIMEOUT:
        message = (
            f"{timeout} must be at least {MIN_START_TIMEOUT}s. Kueue would evict pods that are still being created and "
            "scheduled."
        )
        yield Problem(path, timeout, message, (f"{MIN_START_TIMEOUT}s",))


def warn_of_unused_start_timeout(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`scheduling.startTimeout` has no effect with a queue."""
    timeout = spec.scheduling.start_timeout
    if spec.scheduling.queue_name and seconds(timeout) != seconds(START_TIMEOUT):
        message = has_no_effect("Kueue admits the slices of a job with `queueName`", timeout)
        yield Problem("spec.scheduling.startTimeout", timeout, message)


def warn_of_unused_hot_standby(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A hot standby world takes over only when the job shrinks at once."""
    if not spec.elastic.hot_standby or spec.slices.count is not None:
        return
    if (
        len(spec.slices.slice_counts) < 2
    ):  # no problem: an edit of the bounds may be undone, and this field is immutable
        message = has_no_effect("`spec.slices` allows only one number of slices")
        yield Problem("spec.elastic.hotStandby", True, message)  # noqa: FBT003
    elif spec.elastic.policy != "shrink":
        message = (
            f"takes effect only at planned changes. With `policy: {spec.elastic.policy}`, the job first waits for "
            "a lost slice."
        )
        yield Problem("spec.elastic.hotStandby", True, message)  # noqa: FBT003


def warn_of_mutable_tag(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With a mutable image tag, a replaced pod may run another image."""
    image = spec.runtime.image or ""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if image and not digest and tag in ("", "latest"):
        message = (
            f"{image} has the mutable tag `latest`. A replaced pod may pull another image. Write a version tag or a "
            "digest."
        )
        yield Problem("spec.runtime.image", image, message)


def warn_of_plain_secrets(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Secrets should come from `secretKeyRef`, because every reader of the job can read its values."""
    for number, variable in enumerate(spec.runtime.env):
        if variable.value and variable.name.upper().endswith(SECRET_ENDINGS):
            message = (
                f"{variable.name} looks like a secret. Every reader of the job can read its value. Use `secretKeyRef`."
            )
            yield Problem(f"spec.runtime.env[{number}].value", None, message)


def warn_of_unused_flags(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The XLA flag for the number of devices has no effect, because `slices.topology` sets it."""
    for number, variable in enumerate(spec.runtime.env):
        if variable.name == "XLA_FLAGS" and DEVICE_COUNT_FLAG in (variable.value or ""):
            message = has_no_effect("`spec.slices.topology` sets the devices of a host", f"--{DEVICE_COUNT_FLAG}")
            yield Problem(f"spec.runtime.env[{number}].value", variable.value, message)


def _world_flags(variable: EnvVar) -> list[str]:
    """Return the flags with which a variable would configure a world."""
    flags = (variable.value or "").split() if variable.name == LIBTPU_FLAGS else []
    return [flag for text in flags if (flag := text.partition("=")[0].lstrip("-")) in WORLD_FLAGS]


def _value_sources(variable: EnvVar) -> list[str]:
    values = {
        "value": variable.value,
        "secretKeyRef": variable.secret_key_ref,
        "configMapKeyRef": variable.config_map_key_ref,
    }
    return [name for name, value in values.items() if value is not None]


RULES: tuple[Rule | HardwareRule, ...] = (
    Rule(("runtime.env", *SECRET_PARENTS), check_env),
    Rule(("runtime.resources",), check_resources),
    Rule(("data.prepare",), check_prepare_resources),
    Rule(("runtime.imagePullSecrets",), check_pull_secrets),
    Rule(("scheduling.tolerations",), check_tolerations),
    Rule(("scheduling.startTimeout",), check_start_timeout),
    Rule(("scheduling.queueName", "scheduling.readyTimeout"), check_ready_timeout),
    HardwareRule(("slices.accelerator", "slices.topology", "scheduling.nodeSelector"), check_node_selector),
    Rule(("elastic.heartbeatTimeout",), check_heartbeat_timeout),
    Rule(("elastic.nodeProbation",), check_node_probation),
    Rule(("elastic.progressTimeout", "elastic.heartbeatTimeout"), check_progress_timeout),
    HardwareRule(("slices.accelerator", "slices.topology", "elastic.hotStandby"), check_hot_standby_platform),
    Rule(("slices.count", "elastic.hotStandby", "runtime.compileCache"), check_hot_standby_requirements),
)
WARNINGS = (
    Rule(("slices.count", "elastic.growCooldown"), warn_of_unused_cooldown),
    Rule(("elastic.policy", "elastic.shrinkAfter"), warn_of_unused_shrink_after),
    Rule(("scheduling.queueName", "scheduling.startTimeout"), warn_of_unused_start_timeout),
    Rule(("slices", "elastic.policy", "elastic.hotStandby"), warn_of_unused_hot_standby),
    Rule(("runtime.image",), warn_of_mutable_tag),
    Rule(("runtime.env",), warn_of_plain_secrets),
    Rule(("runtime.env",), warn_of_unused_flags),
)
