"""Meshes of two devices along each of some axes, as the planner lays out a job on them."""

from functools import cache
from itertools import combinations
from typing import Any

from tests.support.trainer.training import spec_with
from trainingjob_api.base import AXES, Axis
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import plan_job

SIZE = {"vocabSize": 272, "embedDim": 16, "mlpDim": 16, "numLayers": 2, "numHeads": 2, "numKvHeads": 2, "headDim": 8}
DROPLESS = {"count": 4, "perToken": 2, "dispatch": "dropless", "balance": {"lossWeight": 0.01}}
MODELS: dict[str, dict[str, Any]] = {
    "dense": SIZE,
    "windows": SIZE
    | {
        "numLayers": 4,
        "tieEmbeddings": True,
        "embeddingScale": 4.0,
        "mlp": {"activation": "geluTanh"},
        "norm": {"zeroCentered": True, "placement": "both"},
        "attention": {"queryKeyNorm": "perHead", "softCap": 50.0, "window": 6},
        "logits": {"softCap": 30.0},
        "layers": {"pattern": [{"rope": {"theta": 100.0}}, {"attention": "full"}]},
    },
    "dropless experts": SIZE | {"experts": DROPLESS | {"normalizeWeights": True}},
    "latent": {name: size for name, size in SIZE.items() if name not in ("numKvHeads", "headDim")}
    | {
        "numLayers": 3,
        "latentAttention": {"queryRank": 8, "keyValueRank": 8, "ropeDim": 4, "noRopeDim": 8, "valueDim": 8},
        "rope": {"interleaved": True},
        "layers": {"leading": [{"count": 1, "feedForward": "dense"}]},
        "experts": DROPLESS
        | {"mlpDim": 8, "shared": 1, "scoring": "sigmoid", "normalizeWeights": True, "balance": {"biasRate": 0.001}},
    },
}
"""Small models: of Llama, of Gemma with its windows, of Mixtral without capacity, of DeepSeek."""
UNBALANCED = MODELS["latent"] | {"experts": MODELS["latent"]["experts"] | {"balance": {}}}
"""The model of DeepSeek without balancing biases, which have loads instead of gradients."""
TRIPLES: tuple[tuple[Axis, ...], ...] = (
    ("data", "stage", "tensor"),
    ("data", "fsdp", "context"),
    ("stage", "fsdp", "context"),
    ("fsdp", "expert", "tensor"),
    ("stage", "expert", "tensor"),
    ("expert", "context", "tensor"),
    ("fsdp", "context", "tensor"),
)


def list_axes() -> tuple[tuple[Axis, ...], ...]:
    """Return each axis, each pair and the triples."""
    return *((axis,) for axis in AXES), *combinations(AXES, 2), *TRIPLES


@cache
def has_mesh(model: str, axes: tuple[Axis, ...]) -> bool:
    """Return whether a model can be sharded along axes."""
    return not ("expert" in axes and "experts" not in MODELS[model]) and not ("stage" in axes and model == "latent")


def describe_mesh(model: str, axes: tuple[Axis, ...], /, **changes: Any) -> TrainingJobSpec:
    """Return a job with a model of the table on two devices along each axis."""
    sections: dict[str, Any] = {
        "model": MODELS[model],
        "slices": {"accelerator": "cpu", "topology": f"1x{2 ** len(axes)}", "count": 1},
        "parallelism": {"ici": dict.fromkeys(axes, 2)},
        "training__steps": 20,
        "training__globalBatchSize": 8,
        "optimizer__learningRate": 0.003,
    }
    return spec_with(**sections | changes)


def plan_mesh(spec: TrainingJobSpec) -> SizePlan:
    """Return the plan of a job's only size."""
    (size,) = plan_job(spec).sizes
    return size
