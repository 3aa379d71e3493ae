"""Rules about the memory of a step: remat policies, host offload, and chunks of the logits."""

from collections.abc import Iterator

from trainingjob_api.network.activations import LAYER_INPUT
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.optim import list_slots
from trainingjob_api.optimizer_memory import is_offloaded
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import CUSTOM, OPTIMIZER
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.memory import PROCESS_BYTES
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import SizeOutcomes, find_slice_shape
from trainingjob_operator.core.planner.problem_messages import join_words, quote_field
from trainingjob_operator.core.planner.workload import CPU
from trainingjob_operator.core.units import format_size, pluralize
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.core.validation.rule import Rule, SizesRule, find_repeated
from trainingjob_operator.core.validation.validate_sizes import SIZE_FIELDS

_GIB = 2**30


def check_loss_chunks(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.lossChunks` must not exceed the tokens of a sequence."""
    chunks, length = spec.memory.loss_chunks, spec.training.sequence_length
    if chunks is not None and chunks > length:
        limit = quote_field("spec.training.sequenceLength", length)
        message = f"{chunks} must be at most {limit}. A chunk of the logits has one token or more."
        yield Problem("spec.memory.lossChunks", chunks, message, (str(length),))


def check_remat_lists(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`memory.save` and activations in `memory.offload` belong to `memory.remat: custom`, which must have some."""
    memory = spec.memory
    activations = memory.offloaded_activations
    if memory.remat == CUSTOM:
        if not (memory.save or activations):
            message = (
                "custom must have `spec.memory.save` or `spec.memory.offload`. `full` saves only the inputs of layers."
            )
            yield Problem("spec.memory.remat", CUSTOM, message, ("full",))
        return
    policy = quote_field("spec.memory.remat", memory.remat)
    offload = (activations or None) if memory.offloads_optimizer else memory.offload
    for field, names in {"save": memory.save, "offload": offload}.items():
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
            if name not in (*found, LAYER_INPUT, OPTIMIZER):
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
    return list(dict.fromkeys(activation.name for block in blocks for activation in block.activations(shard)))


def check_offload_platform(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Activations in `memory.offload` need devices with a memory of their own."""
    activations = spec.memory.offloaded_activations
    if activations and spec.slices.accelerator == CPU:
        message = "must name no activation on cpu. Its devices have no memory beside that of the host."
        yield Problem("spec.memory.offload", list(activations), message)


def check_optimizer_slots(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`optimizer` in `memory.offload` needs an optimizer that keeps state of the size of a matrix."""
    if not spec.memory.offloads_optimizer:
        return
    slots = list_slots(spec.optimizer, spec.precision)
    trained = [tensor for tensor in resolve_network(spec).tensors if tensor.is_trainable]
    if any(slot.is_kept_for(tensor) and is_offloaded(slot, tensor) for slot in slots for tensor in trained):
        return
    others = spec.memory.offloaded_activations
    rest = f"[{', '.join(others)}]" if others else "null"
    optimizer = quote_field("spec.optimizer.type", spec.optimizer.type)
    message = (
        f"optimizer must not be set with {optimizer}, which keeps no state of the size of a matrix here. Remove it."
    )
    yield Problem("spec.memory.offload", list(spec.memory.offload or ()), message, (rest,))


def check_offload_memory(spec: TrainingJobSpec, sizes: SizeOutcomes, hardware: Hardware) -> Iterator[Problem]:
    """`runtime.resources.memory` must hold what the devices of a host offload: activations and optimizer state."""
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
    Rule(("memory.offload", "optimizer", "precision", "model", "lora"), check_optimizer_slots),
)
SIZES_RULES = (SizesRule((*SIZE_FIELDS, "runtime.resources.memory"), check_offload_memory),)
