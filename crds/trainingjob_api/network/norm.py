"""RMS norm (Zhang and Sennrich, arXiv 1910.07467)."""

from dataclasses import dataclass

from trainingjob_api.network.part import FLOAT32, Part, Shard
from trainingjob_api.network.tensor import DecayClass, Ones, Role, Tensor


@dataclass(frozen=True)
class RmsNorm(Part):
    """A root-mean-square norm with a learned scale."""

    width: int
    epsilon: float

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the scale."""
        return (Tensor("scale", (self.width,), ("norm",), Ones(), DecayClass.NORM, Role.VECTOR),)

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of three intermediate values in float32, and of the result."""
        return self.width * (3 * FLOAT32 + shard.compute_bytes)
