"""The precision section: number formats, and the precision of matmuls."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Strict
from trainingjob_api.meta import Example

FloatType = Literal["float32", "bfloat16"]
MatmulPrecision = Literal["default", "high", "highest"]
QuantizedType = Literal["int8", "fp8"]


class Quantization(Strict):
    """Matmuls of the layers in a narrow format. Parameters, optimizer and checkpoints keep their formats."""

    type: Annotated[QuantizedType, Example("int8")] = Field(
        description="Format to which operands are rounded: `int8`, or `fp8` (E4M3, and E5M2 for gradients). With "
        "`int8` the gradients of parameters stay in `precision.compute`."
    )
    exclude: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Example(["*.attention.out"])
    ] = Field(
        default=(),
        max_length=64,
        description="Matrices that stay in `precision.compute`, with `*` for any characters; `trainingjob plan "
        "--tensors` lists all names. Embedding, router and output projection always do.",
        json_schema_extra=LIST_TYPE_SET,
    )


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
    quantization: Quantization | None = Field(
        default=None,
        description="Quantized matmuls. Unset: all matmuls are in `precision.compute`.",
        exclude_if=lambda quantization: quantization is None,  # an agent before 0.1 refuses a field it does not know
    )
