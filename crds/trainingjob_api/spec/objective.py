"""The objective section: what training minimizes."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example


class Objective(Strict):
    """Minimized loss: the cross-entropy of the next token, with auxiliary losses."""

    z_loss: Annotated[Annotated[float, Field(gt=0, le=1)] | None, NO_UNIT, Example(1e-4)] = Field(
        default=None,
        description="Weight of the squared log-partition of the logits in the minimized loss, not in the reported one "
        "(PaLM, arXiv 2204.02311). Unset: there is none.",
    )
