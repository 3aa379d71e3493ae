"""Rules about activation memory: remat policies, host offload, and chunks of the logits."""

from collections.abc import Iterator

from trainingjob_api.network.activations import LAYER_INPUT
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import CUSTOM
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import SizeOutcomes, find_slice_shape
from trainingjob_operator.core.planner.problem_messages import join_words, quote_field
from trainingjob_operator.core.planner.workload import CPU
from trainingjob_operator.core.units import format_size, pluralize
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.core.validation.rule import Rule, SizesRule, find_repeated
from trainingjob_operator.core.validation.validate_sizes import SIZE_FIELDS

PROCESS_BYTES = 2**30
"""Memory of a host's processes beside what they offload, at least."""
_GIB = 2**30


def check_loss_chunks(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.lossChunks` must not exceed the tokens of a sequence."""
    chunks, length = spec.memory.loss_chunks, spec.training.sequence_length
    if chunks is not None and chunks > length:
        limit = quote_field("spec.training.sequenceLength", length)
        message = f"{chunks} must be at most {limit}. A chunk of the logits has one token or more."
        yield Problem("spec.memory.lossChunks", chunks, message, (str(length),))


def check_remat_lists(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.save` and `memory.offload` belong to `memory.remat: custom`, which must have one of them."""
    memory = spec.memory
    lists = {"save": memory.save, "offload": memory.offload}
    if memory.remat == CUSTOM:
        if not any(lists.values()):
            message = (
                "custom must have `spec.memory.save` or `spec.memory.offload`. `full` saves only the inputs of layers."
            )
            yield Problem("spec.memory.remat", CUSTOM, message, ("full",))
        return
    policy = quote_field("spec.memory.remat", memory.remat)
    for field, names in lists.items():
        if names is not None:
            message = f"must not be set with {policy}. Remove it, or change the policy."
            yield Problem(f"spec.memory.{field}", list(names), message, (f"spec.memory.remat: {CUSTOM}",))


def check_activation_names(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.save` and `memory.offload` must name different activations that the model has."""
    memory, found = spec.memory, _find_activations(spec)
    for field, names in (("save", memory.save or ()), ("offload", memory.offload or ())):
        path = f"spec.memory.{field}"
        yield from find_repeated(path, names)
        for number, name in enumerate(names):
            if name not in found and name != LAYER_INPUT:
                message = f"{name} must be one that the backward pass of this model needs: {join_words(found)}."
                yield Problem(f"{path}[{number}]", name, message)
    for number, name in enumerate(memory.offload or ()):
        if name in (memory.save or ()):
            message = f"{name} must not be in `spec.memory.save` too. An activation is saved in one memory."
            yield Problem(f"spec.memory.offload[{number}]", name, message)


def _find_activations(spec: TrainingJobSpec) -> list[str]:
    """Return the names of the activations of a model, in the order of their computation."""
    shard = Shard(spec.training.sequence_length, 1, dict(AxisDegrees().items()))
    blocks = resolve(spec.model).blocks
    return list(dict.fromkeys(one.name for block in blocks for one in block.activations(shard)))


def check_offload_platform(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.offload` needs devices with a memory of their own."""
    if spec.memory.offload is not None and spec.slices.accelerator == CPU:
        message = "must not be set on cpu. Its devices have no memory beside that of the host."
        yield Problem("spec.memory.offload", list(spec.memory.offload), message)


def check_offload_memory(spec: TrainingJobSpec, sizes: SizeOutcomes, hardware: Hardware) -> Iterator[Problem]:
    """`runtime.resources.memory` must hold what the devices of a host offload."""
    shape, memory = find_slice_shape(spec, hardware), spec.runtime.resources.memory
    if shape is None or spec.memory.offload is None or spec.slices.accelerator == CPU:
        return
    planned = (size for size in sizes.values() if isinstance(size, SizePlan))
    offloaded = max((size.memory.host for size in planned if size.memory), default=0) * shape.devices_per_host
    if offloaded + PROCESS_BYTES > parse_bytes(memory):
        devices = pluralize(shape.devices_per_host, shape.device_noun)
        message = (
            f"{memory} must be at least {format_size(offloaded + PROCESS_BYTES)}. The {devices} of a host offload "
            f"{format_size(offloaded)}, and its processes need {format_size(PROCESS_BYTES)}."
        )
        nearest = format_bytes(-(-(offloaded + PROCESS_BYTES) // _GIB) * _GIB)
        yield Problem("spec.runtime.resources.memory", memory, message, (nearest,))


RULES = (
    Rule(("memory.lossChunks", "training.sequenceLength"), check_loss_chunks),
    Rule(("memory.remat", "memory.save", "memory.offload"), check_remat_lists),
    Rule(("memory.save", "memory.offload", "model", "training.sequenceLength"), check_activation_names),
    Rule(("memory.offload", "slices.accelerator"), check_offload_platform),
)
SIZES_RULES = (SizesRule((*SIZE_FIELDS, "runtime.resources.memory"), check_offload_memory),)
