"""The job that a soak trains: so small that a step takes milliseconds, and whole in every other respect."""

from random import Random
from typing import Any

from e2e.product import Manifest

NAME = "soak"
STEPS = 500
"""As far as the curves of two orders of summation stay comparable."""
SAVE_EVERY = 10
HANG_SECONDS = 4
SHARED = "/shared"


def make_spec(random: Random | None = None) -> Manifest:
    """Return the spec of a job; `random` draws what may differ and must not show in the curve. None: nothing does."""
    checkpoint: dict[str, Any] = {
        "uri": f"{SHARED}/{NAME}",
        "save": {"everySteps": SAVE_EVERY},
        "keep": {"last": 4},
    }
    elastic: dict[str, Any] = {
        "silenceAfter": "2s",
        "hangAfter": f"{HANG_SECONDS}s",
        "growCooldown": "1s",
        "maxRestarts": 10_000,
        "maxRestartsWithoutCommit": 10_000,
    }
    if random and random.random() < 0.5:
        checkpoint["snapshots"] = {"everySteps": random.choice((3, 5))}
    if random and random.random() < 0.25:
        elastic |= {"policy": "wait", "shrinkAfter": "2s"}
    if random and random.random() < 0.5:
        elastic["shadowWorld"] = True
    return {
        "slices": {"accelerator": "cpu", "topology": "1x1", "min": 1, "max": 2},
        "model": {
            "vocabSize": 257,
            "embedDim": 32,
            "mlpDim": 64,
            "numLayers": 2,
            "numHeads": 4,
            "numKvHeads": 4,
            "headDim": 8,
        },
        "data": {"train": [{"name": "json", "path": "python:json", "pattern": "*.py"}]},
        "training": {"steps": STEPS, "globalBatchSize": 8, "sequenceLength": 64},
        "optimizer": {"learningRate": 0.001},
        "schedule": {"type": "constant"},
        "precision": {"compute": "float32"},
        "checkpoint": checkpoint,
        "elastic": elastic,
        "metrics": {"everySteps": 1, "tensorboard": False},
        "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": SHARED}]},
    }
