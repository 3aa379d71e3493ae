"""Scores of an evaluation beside its loss, as hosts report them and as the status has them."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Open

MAX_SCORE = 1e39
"""Larger than the largest float32."""
Score = Annotated[float, Field(ge=0, le=MAX_SCORE, allow_inf_nan=False)]


class EvaluationScores(Open):
    """Accuracy and compression of a model on held-out text. Each prediction counts by its loss weight."""

    accuracy: Score = Field(description="Share of the predictions whose target is the most likely token.")
    bits_per_byte: Score | None = Field(
        default=None,
        description="Bits of cross-entropy per byte of the predicted text. Unset: the trainer that tokenized the text "
        "did not count its bytes.",
    )
