"""What a compiled train step says of itself: memory, arithmetic, and bytes over each network by mesh axes.

The planner predicts these numbers, the trainer reads them off a program that was compiled without a device.
"""

from typing import Literal

from trainingjob_api.base import Axis, Strict

type Network = Literal["ici", "dcn"]
"""`ici`: inside a slice, whatever its interconnect is called; `dcn`: between slices."""
type CollectiveKind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute"]


class Collective(Strict):
    """Bytes that one device sends in one step.

    Counted as rings send them, whatever the machine does: of a tensor of N bytes over n devices an all-gather, a
    reduce-scatter and an all-to-all send N (n-1)/n, an all-reduce twice as much, a permutation N.
    """

    network: Network
    axes: tuple[Axis, ...]
    """Mesh axes along which the devices of a group differ, in mesh order."""
    kind: CollectiveKind
    bytes: int


class CompiledStep(Strict):
    """One train step, as the compiler made it for one device. Bytes of memory are XLA's `memory_analysis`."""

    num_slices: int
    arguments: int
    """Bytes of the inputs, the state among them."""
    outputs: int
    aliased: int
    """Bytes of outputs that lie in the place of inputs."""
    temporaries: int
    flops: int
    """Operations of matrix products, those in loops as often as they run. A multiplication with addition is two."""
    collectives: tuple[Collective, ...]
    seconds: float
    """How long the compiler took."""

    @property
    def memory(self) -> int:
        """Return the bytes that the program needs of a device."""
        return self.arguments + self.temporaries + self.outputs - self.aliased


class CompileAnswer(Strict):
    """One line of the answer, for one size. Either there is a step, or `error` says why not."""

    num_slices: int
    step: CompiledStep | None = None
    error: str = ""
