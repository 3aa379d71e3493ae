"""Memory of the optimizer's state between steps. Planner and trainer choose it by the same function."""

from dataclasses import dataclass
from typing import Literal

from trainingjob_api.network.attention_kernel import CPU
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import Slot
from trainingjob_api.spec.job import TrainingJobSpec


@dataclass(frozen=True)
class OptimizerMemory:
    """The memory of a job's optimizer state, and the reason for it."""

    name: Literal["device", "host"]
    reason: str
    """A clause after "because"."""


def choose_optimizer_memory(spec: TrainingJobSpec) -> OptimizerMemory:
    """Return the memory of the optimizer's state."""
    if not spec.memory.offloads_optimizer:
        return OptimizerMemory("device", "`memory.offload` does not name it")
    if spec.slices.accelerator == CPU:
        return OptimizerMemory("device", "devices of cpu have no memory beside that of the host")
    return OptimizerMemory("host", "`memory.offload` names it")


def is_offloaded(slot: Slot, tensor: Tensor) -> bool:
    """Return whether a slot of a tensor can be in host memory: whole matrices, since vectors take little memory."""
    return slot.part == "whole" and tensor.is_matrix
