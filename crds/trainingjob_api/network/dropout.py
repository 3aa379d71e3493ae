"""Dropout of hidden states (Srivastava et al., 2014): its options.

The trainer derives the masks from the seed of a job. The backward pass computes them again: they take no memory.
"""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example

Rate = Annotated[float, Field(ge=0, lt=1), NO_UNIT, Example(0.1)]


class Dropout(Strict):
    """Shares of hidden features that training sets to 0. Evaluations and generated texts use all features."""

    residual: Rate = Field(
        default=0.0,
        description="Share of the features that attention and MLPs add to the residual stream (`resid_pdrop` of "
        "GPT-2).",
    )
    embedding: Rate = Field(
        default=0.0,
        description="Share of the features of the embeddings of tokens and positions (`embd_pdrop` of GPT-2).",
    )
