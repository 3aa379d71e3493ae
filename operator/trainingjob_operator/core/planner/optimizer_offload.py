"""Optimizer state in host memory: the spec that has it there, and whether the rest of the state may fit devices."""

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import OPTIMIZER
from trainingjob_operator.core.planner.memory import PROCESS_BYTES, USABLE_MEMORY_SHARE
from trainingjob_operator.core.planner.plan import SliceShape
from trainingjob_operator.core.planner.workload import describe_workload


def offload_optimizer(spec: TrainingJobSpec) -> TrainingJobSpec | None:  # None: that moves nothing
    """Return the spec with the state of the optimizer in host memory."""
    memory = spec.memory.model_copy(update={"offload": (*(spec.memory.offload or ()), OPTIMIZER)})
    changed = spec.model_copy(update={"memory": memory})
    workload = describe_workload(changed)
    moves = any(workload.list_offloaded_slots(tensor) for tensor in workload.network.tensors if tensor.is_trainable)
    return changed if moves and not spec.memory.offloads_optimizer else None


def may_hold_state(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> bool:
    """Return whether the state alone, sharded over all devices, leaves free memory."""
    workload = describe_workload(spec)
    per_parameter = workload.param_bytes + workload.gradient_bytes
    tensors = workload.network.tensors
    lists = ((1, workload.list_slots), (-1, workload.list_offloaded_slots))
    slots = (
        sign * state.size * num_bytes
        for sign, list_slots in lists
        for tensor in tensors
        for state, num_bytes in list_slots(tensor)
    )
    second = workload.reference
    reference = sum(tensor.size * second.workload.param_bytes for tensor in second.tensors) if second else 0
    num_bytes = sum(tensor.size * per_parameter for tensor in tensors) + sum(slots) + reference
    return num_bytes < num_slices * shape.num_devices * shape.memory_bytes * USABLE_MEMORY_SHARE


def max_offloaded_bytes(shape: SliceShape, pod_memory_bytes: int) -> int:
    """Return the host memory that each device may take of its pod; negative if the pod has none for its devices."""
    return (pod_memory_bytes - PROCESS_BYTES) // shape.devices_per_host
