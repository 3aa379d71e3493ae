"""The job that a soak trains. A step takes milliseconds; apart from its size the job is a complete one."""

from random import Random
from typing import Any

from e2e.product import Manifest

NAME = "soak"
STEPS = 500
"""Number of steps for which loss curves with different summation orders stay comparable."""
SAVE_EVERY = 10
HANG_SECONDS = 4
SHARED = "/shared"


def make_spec(random: Random | None = None) -> Manifest:
    """Return the spec of a job. `random` draws the settings that must not affect the curve; None: all fixed."""
    checkpoint: dict[str, Any] = {
        "uri": f"{SHARED}/{NAME}",
        "save": {"everySteps": SAVE_EVERY},
        "keep": {"last": 4},
    }
    elastic: dict[str, Any] = {
        "heartbeatTimeout": "2s",
        "progressTimeout": f"{HANG_SECONDS}s",
        "growCooldown": "1s",
        "maxRestarts": 10_000,
        "maxRestartsWithoutCommit": 10_000,
    }
    if random and random.random() < 0.5:
        checkpoint["snapshots"] = {"everySteps": random.choice((3, 5))}
    if random and random.random() < 0.25:
        elastic |= {"policy": "wait", "shrinkAfter": "2s"}
    if random and random.random() < 0.5:
        elastic["hotStandby"] = True
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
