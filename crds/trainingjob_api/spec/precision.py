"""The precision section: number formats, and the precision of matmuls."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example

FloatType = Literal["float32", "bfloat16"]
MatmulPrecision = Literal["default", "high", "highest"]


class Precision(Strict):
    """Number formats, and the precision of matmuls. Losses are always summed in float32."""

    compute: Annotated[FloatType, Example("float32")] = Field(
        default="bfloat16", description="Format of matrix products and activations."
    )
    params: Annotated[FloatType, Example("float32")] = Field(
        default="float32", description="Format in which parameters are stored."
    )
    gradients: Annotated[FloatType, Example("float32")] = Field(
        default="float32",
        description="Format in which gradients are summed over gradient-accumulation steps and devices.",
    )
    logits: Annotated[FloatType, Example("float32")] = Field(
        default="float32",
        description="Format of the logits. Their softmax is computed in float32.",
    )
    moments: Annotated[FloatType, Example("float32")] = Field(
        default="float32",
        description="Format of the optimizer's first moment. A second moment is always float32: in bfloat16 its sums "
        "would stall.",
    )
    matmul: Annotated[MatmulPrecision, Example("default")] = Field(
        default="default",
        description="Precision of float32 matmuls: `high` takes three bfloat16 passes on a TPU and `highest` six. The "
        "default is one pass on a TPU, and TensorFloat-32 on NVIDIA GPUs.",
    )
