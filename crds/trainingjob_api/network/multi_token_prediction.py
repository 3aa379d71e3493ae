"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): modules that predict further tokens in training.

Module k joins the hidden state of a token with the embedding of the token k places later, and runs one more layer. Its
output predicts the token after that one. The modules share the embedding table and the output projection with the
model, and generated text does not need them.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit
from trainingjob_api.network.block import Block
from trainingjob_api.network.matrix_init import BY_WIDTH, InitRule
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.tensor import MODULES, DecayClass, Role, Tensor
from trainingjob_api.token_order import Exchange

PREDICTION = "prediction"
"""Name of the modules in the model."""
PREDICTION_PREFIX = f"{PREDICTION}.block."
"""What the names of the tensors of their layer begin with."""


class MultiTokenPrediction(Strict):
    """Modules that predict further tokens during training (DeepSeek-V3, arXiv 2412.19437)."""

    depth: Annotated[int, Field(ge=1, le=8), Unit("tokens"), Example(1)] = Field(
        default=1, description="Number of further tokens that are predicted, with one module each."
    )
    loss_weight: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(0.3)] = Field(
        default=0.3, description="Weight of the mean of the modules' losses in the loss of a step."
    )


@dataclass(frozen=True)
class PredictionModules:
    """The modules, whose parameters are stacked. Each has a layer, three norms and a projection of two inputs."""

    block: Block
    norm: HiddenNorm
    options: MultiTokenPrediction
    init: InitRule = BY_WIDTH

    def on(self, accelerator: str, exchange: Exchange) -> "PredictionModules":
        """Return the modules with the kernels of an accelerator. Their few hidden states stay whole."""
        return replace(self, block=self.block.on(accelerator, exchange, shards_stream=False))

    @property
    def own_tensors(self) -> tuple[Tensor, ...]:
        """Return the two halves of the projection of a module: of the token, and of the hidden state."""
        width = self.norm.width
        shape, axes, init = (width, width), ("embed", "head"), self.init.of_inputs(2 * width)
        return tuple(
            Tensor(name, shape, axes, init, DecayClass.MATRIX, Role.INPUT)
            for name in ("token_projection", "hidden_projection")
        )

    @property
    def num_projected(self) -> int:
        """Return the number of parameters of all projections."""
        return self.options.depth * sum(tensor.size for tensor in self.own_tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stacked tensors, with their names in the model."""
        norms = ("token_norm", "hidden_norm", "norm")
        inside = (
            *self.own_tensors,
            *(tensor.nest(f"{name}.") for name in norms for tensor in self.norm.tensors),
            *(tensor.nest("block.") for tensor in self.block.tensors),
        )
        return tuple(tensor.stack(f"{PREDICTION}.", self.options.depth, MODULES) for tensor in inside)
