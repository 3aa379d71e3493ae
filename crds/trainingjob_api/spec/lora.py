"""The LoRA section: low-rank adapters that are trained instead of the model."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit

MAX_RANK = 4096


class Lora(Strict):
    """Low-rank adapters (Hu et al., arXiv 2106.09685). Only they are trained; the model is frozen."""

    rank: Annotated[int, Field(ge=1, le=MAX_RANK), Unit("features"), Example(16)] = Field(
        description="Inner width of each adapter, less than both sides of its matrix."
    )
    alpha: Annotated[float, Field(gt=0, le=100_000), NO_UNIT, Example(32.0)] = Field(
        description="Scale of the adapters: their products are multiplied by `alpha` / `rank`."
    )
    targets: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
        Field(min_length=1, max_length=64, json_schema_extra=LIST_TYPE_SET),
        Example(["*.attention.query", "*.attention.value"]),
    ] = Field(
        description="Matrices of the layers that get an adapter, with `*` for any characters; `trainingjob plan "
        "--tensors` lists all names. Routers and routed experts cannot have one."
    )
    dropout: Annotated[float, Field(ge=0, lt=1), NO_UNIT, Example(0.05)] = Field(
        default=0.0, description="Share of an adapter's input features that training sets to 0. Evaluations use all."
    )
    base_quantization: Annotated[Literal["int8"] | None, Example("int8")] = Field(
        default=None,
        description="Format in which the frozen matrices of the layers are stored, with a scale for each output "
        "feature. Unset: that of `precision.params`.",
    )

    @property
    def scale(self) -> float:
        """Return the factor on the products of the adapters."""
        return self.alpha / self.rank
