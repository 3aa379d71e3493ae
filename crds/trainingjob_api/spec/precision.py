"""The precision section: number formats."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example

FloatType = Literal["float32", "bfloat16"]


class Precision(Strict):
    """Number formats. Losses, gradients' accumulation and optimizer moments are always float32."""

    compute: Annotated[FloatType, Example("float32")] = Field(
        default="bfloat16", description="Format of matrix products and activations."
    )
    params: Annotated[FloatType, Example("float32")] = Field(
        default="float32", description="Format in which parameters are stored."
    )
