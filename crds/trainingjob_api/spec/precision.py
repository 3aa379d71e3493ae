"""The precision section: number formats."""

from typing import Literal

from pydantic import Field

from trainingjob_api.base import Strict

FloatType = Literal["float32", "bfloat16"]


class Precision(Strict):
    """Number formats. Losses, gradients' accumulation and optimizer moments are always float32."""

    compute: FloatType = Field(default="bfloat16", description="Format of matrix products and activations.")
    params: FloatType = Field(default="float32", description="Format in which parameters are stored.")
