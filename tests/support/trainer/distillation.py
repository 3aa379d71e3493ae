"""A teacher for the tiny student of the tests."""

from typing import Any

TEACHER: dict[str, Any] = {
    "model": {
        "vocabSize": 272,
        "embedDim": 32,
        "mlpDim": 48,
        "numLayers": 4,
        "numHeads": 4,
        "headDim": 8,
        "init": {"std": 0.5},
        "tieEmbeddings": True,
    },
    "initializeFrom": {"uri": "/unused/teacher", "step": 1},
}
"""Wider and deeper than the student, with other heads and a tied table."""


def distillation(**options: Any) -> dict[str, Any]:
    """Return the objective of a distillation."""
    return {"type": "distill", "distill": {"teacher": TEACHER, **options}}
