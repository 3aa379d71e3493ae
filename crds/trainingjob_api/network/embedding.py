"""What surrounds the layers: the tables of tokens and positions, and the output head with its logits."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example
from trainingjob_api.network.matrix_init import BY_WIDTH, InitRule
from trainingjob_api.network.tensor import DecayClass, Normal, Role, Tensor


class Logits(Strict):
    """Options of the logits."""

    scale: Annotated[float, Field(gt=0, le=1000), NO_UNIT, Example(1.0)] = Field(
        default=1.0, description="Factor on the logits."
    )
    soft_cap: Annotated[Annotated[float, Field(gt=0, le=10000)] | None, NO_UNIT, Example(30.0)] = Field(
        default=None, description="Limit that the logits approach by tanh, after the factor. Unset: no limit."
    )


@dataclass(frozen=True)
class Embedding:
    """The embedding table, and a table of learned positions."""

    vocab_size: int
    width: int
    stddev: float
    scale: float = 1.0
    """Factor on the embeddings of tokens."""
    max_positions: int | None = None
    """Rows of the table of learned positions. None: there is none."""
    dropout: float = 0.0
    """Share of the features that training sets to 0."""

    @property
    def tensor(self) -> Tensor:
        """Return the table of tokens."""
        shape, axes = (self.vocab_size, self.width), ("vocab", "embed")
        return Tensor("embedding", shape, axes, Normal(self.stddev), DecayClass.EMBEDDING, Role.TABLE)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tables."""
        if self.max_positions is None:
            return (self.tensor,)
        shape, axes, init = (self.max_positions, self.width), ("position", "embed"), Normal(self.stddev)
        return (self.tensor, Tensor("positions", shape, axes, init, DecayClass.EMBEDDING, Role.VECTOR))


@dataclass(frozen=True)
class Head:
    """The logits: their matrix, and what is done with their values."""

    width: int
    vocab_size: int
    is_tied: bool
    """Whether the matrix is the embedding table."""
    options: Logits
    init: InitRule = BY_WIDTH

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the matrix, if it is not the embedding table."""
        shape, axes, init = (self.width, self.vocab_size), ("embed", "vocab"), self.init.of_inputs(self.width)
        matrix = Tensor("head", shape, axes, init, DecayClass.MATRIX, Role.HEAD)
        return () if self.is_tied else (matrix,)
