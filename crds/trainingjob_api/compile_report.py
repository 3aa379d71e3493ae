"""Compiler report of a train step: memory, FLOPs, and bytes over each network by mesh axes.

The planner predicts these numbers. The trainer reads them from a program that is compiled without a device.
"""

from typing import Literal

from trainingjob_api.base import Axis, Strict

type Network = Literal["ici", "dcn"]
"""`ici`: inside a slice, over any interconnect; `dcn`: between slices."""
type CollectiveKind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute"]


class Collective(Strict):
    """Bytes that one device sends in one step.

    The count assumes ring algorithms, whatever the machine uses. For a tensor of N bytes over n devices, an all-gather,
    a reduce-scatter and an all-to-all send N (n-1)/n bytes. An all-reduce sends twice as much, a permutation N.
    """

    network: Network
    axes: tuple[Axis, ...]
    """Mesh axes along which the devices of a group differ, in mesh order."""
    kind: CollectiveKind
    bytes: int


class CompiledStep(Strict):
    """One train step as compiled for one device. Memory sizes are in bytes, from XLA's `memory_analysis`."""

    num_slices: int
    arguments: int
    """Bytes of the inputs, including the state."""
    outputs: int
    aliased: int
    """Bytes of outputs that alias inputs."""
    temporaries: int
    flops: int
    """FLOPs of matmuls, in loops once for each iteration. A multiply-add counts as two."""
    collectives: tuple[Collective, ...]
    seconds: float
    """Compile time in seconds."""

    @property
    def memory(self) -> int:
        """Return the bytes of device memory that the program needs."""
        return self.arguments + self.temporaries + self.outputs - self.aliased


class CompileAnswer(Strict):
    """One line of the answer, for one number of slices: either a step, or the reason in `error`."""

    num_slices: int
    step: CompiledStep | None = None
    error: str = ""
