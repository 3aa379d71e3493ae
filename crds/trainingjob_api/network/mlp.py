"""Gated SiLU MLP (Shazeer, arXiv 2002.05202)."""

from dataclasses import dataclass

from trainingjob_api.network.part import Part, PartTraffic, Shard
from trainingjob_api.network.tensor import DecayClass, Normal, Role, Tensor


@dataclass(frozen=True)
class GatedMlp(Part):
    """One MLP for all tokens."""

    width: int
    hidden: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the three matrices."""
        shape, axes, init, matrix = (
            (self.width, self.hidden),
            ("embed", "mlp"),
            Normal(self.width**-0.5),
            DecayClass.MATRIX,
        )
        return (
            Tensor("gate", shape, axes, init, matrix, Role.INPUT),
            Tensor("up", shape, axes, init, matrix, Role.PAIRED_INPUT),
            Tensor("down", shape[::-1], axes[::-1], Normal(self.hidden**-0.5), matrix, Role.MLP_OUTPUT),
        )

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of six intermediate values of the hidden width."""
        return 6 * shard.compute_bytes * shard.split(self.hidden, "mlp")

    def traffic(self, length: int) -> PartTraffic:
        """Return the sums of the output and of the input's gradient."""
        return PartTraffic(tensor_sums=2.0, separate_sums=1)
