"""Rotary position embeddings: their options."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example


class Rope(Strict):
    """Rotary position embeddings (Su et al., arXiv 2104.09864)."""

    theta: Annotated[float, Field(ge=1, le=1e9), NO_UNIT, Example(10000.0)] = Field(
        default=10000.0, description="Base of the rotary position frequencies."
    )
