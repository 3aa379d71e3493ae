"""Jobs that join many features, so that each pair of features occurs in one of a few jobs (pairwise testing)."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from tests.support.trainer.distillation import PER_TOKEN
from tests.support.trainer.tiny import make_spec
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job

SIZE = {"vocabSize": 272, "embedDim": 16, "mlpDim": 32, "numLayers": 4, "numHeads": 4}
GROUPED = {"numKvHeads": 2, "headDim": 8}
LATENT = {"queryRank": 8, "keyValueRank": 8, "ropeDim": 4, "noRopeDim": 8, "valueDim": 8}
SLOTS: dict[str, Any] = {"count": 4, "perToken": 2, "groupLength": 4}
SORTED: dict[str, Any] = {"count": 4, "perToken": 2, "dispatch": "dropless", "shared": 1, "mlpDim": 8}
RECORDS = {"name": "text", "path": "/data/text", "format": "jsonl"}
ANSWERS = [RECORDS | {"prompt": "prompt", "completion": "completion"}]
PAIRS = [RECORDS | {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}]
TEACHER = {
    "model": {"vocabSize": 272, "embedDim": 16, "mlpDim": 48, "numLayers": 4, "numHeads": 2, "experts": SORTED},
    "initializeFrom": {"uri": "/data/teacher", "step": 1},
}
MESH, OBJECTIVE = "mesh", "objective"
NUM_ROWS = 30
SKIPPED = 0.1
"""Share of the groups that a row lacks."""
type Changes = Mapping[str, Any]
type Choice = tuple[str, str]
"""A group, and one of its features."""
type Row = frozenset[Choice]


def on_mesh(*axes: str, exchange: str = "gather", schedule: str = "gpipe", shards_stream: bool = False) -> Changes:
    """Return a mesh of two devices along each axis, with what depends on its axes."""
    return {
        "parallelism__ici": dict.fromkeys(axes, 2),
        "parallelism__context": {"exchange": exchange},
        "parallelism__pipeline": {"schedule": schedule},
        "parallelism__shardStreamOverTensor": shards_stream,
    }


GROUPS: Mapping[str, Mapping[str, Changes]] = {
    MESH: {
        "alternating, ring": on_mesh("stage", "fsdp", "context", exchange="ring", schedule="oneForwardOneBackward"),
        "circular": on_mesh("data", "stage", "tensor", schedule="circular"),
        "ring, stream": on_mesh("fsdp", "context", "tensor", exchange="ring", shards_stream=True),
        "alternating, stream": on_mesh(
            "stage", "expert", "tensor", schedule="oneForwardOneBackward", shards_stream=True
        ),
        "gather": on_mesh("data", "expert", "context"),
        "gpipe, ring": on_mesh("data", "stage", "context", exchange="ring"),
    },
    OBJECTIVE: {
        "further tokens": {"model__multiTokenPrediction": {"depth": 2}},
        "answers": {"objective__type": "sft", "data__train": ANSWERS},
        "preferences": {"objective__type": "dpo", "data__train": PAIRS, "checkpoint__takeover": True},
        "teacher": {
            "objective__type": "distill",
            "objective__distill": {"teacher": TEACHER, "features": {"layers": [{"student": 2, "teacher": 3}]}},
        },
        "stored teacher": {
            "objective__type": "distill",
            "objective__distill": {"probabilities": {"uri": "/data/taught", "perToken": PER_TOKEN}},
        },
    },
    "attention": {
        "latent": {"model__latentAttention": LATENT, "model__numKvHeads": None, "model__headDim": None},
        "window, sinks": {"model__attention": {"window": 5, "sinks": True, "softCap": 30.0}},
        "chunk, norm": {"model__attention": {"chunk": 4, "queryKeyNorm": "perProjection", "bias": ["query"]}},
    },
    "layers": {
        "pattern": {"model__layers": {"pattern": [{"rope": {"theta": 100.0}}, {"attention": "full"}]}},
        "dense first": {"model__layers": {"leading": [{"feedForward": "dense"}]}},
    },
    "experts": {
        "slots": {"model__experts": SLOTS},
        "sorted": {"model__experts": SORTED},
        "balanced": {"model__experts": SLOTS | {"scoring": "sigmoid", "balance": {"biasRate": 0.001}}},
    },
    "positions": {
        "learned": {"model__positions": "learned", "model__maxPositions": 64},
        "none": {"model__positions": "none"},
    },
    "embedding": {"tied": {"model__tieEmbeddings": True, "model__logits": {"softCap": 30.0}}},
    "dropout": {"dropout": {"model__dropout": {"residual": 0.2, "embedding": 0.1}}},
    "packing": {"isolated": {"data__packing": {"type": "bestFit"}}},
    "logits": {"chunks": {"memory__lossChunks": 3}},
    "z-loss": {"z-loss": {"objective__zLoss": 0.01}},
    "remat": {
        "full": {"memory__remat": "full"},
        "custom": {"memory__remat": "custom", "memory__save": ["query", "attentionOutput"]},
    },
    "trained": {
        "adapters": {
            "lora": {"rank": 2, "alpha": 4.0, "targets": ["*.attention.query"], "dropout": 0.1},
            "checkpoint__initializeFrom": {"uri": "/data/first", "step": 2},
        },
        "int8 base": {
            "lora": {"rank": 2, "alpha": 4.0, "targets": ["*.attention.out"], "baseQuantization": "int8"},
            "checkpoint__initializeFrom": {"uri": "/data/first", "step": 2},
        },
        "attention alone": {"optimizer__trainable": ["*.attention.*"]},
    },
    "matmuls": {"int8": {"precision__quantization": {"type": "int8"}}},
    "optimizer": {
        "muon": {"optimizer__type": "muon"},
        "adafactor": {"optimizer__type": "adafactor", "optimizer__adafactor": {"minFactoredSize": 8}},
        "sgd": {"optimizer__type": "sgd"},
    },
    "average": {"average": {"optimizer__average": {"decay": 0.99}}},
    "moments": {"over data": {"parallelism__shardOptimizerOverData": True}},
    "spikes": {"spikes": {"protection__spikes": {"window": 4}}},
}
"""Features that exclude each other are in one group. A job may also lack a group."""


def describe(row: Row) -> dict[str, Any]:
    """Return the spec of a job with the features of a row, an evaluation and a sample."""
    changes: dict[str, Any] = {
        "slices": {"accelerator": "cpu", "topology": "1x8", "count": 1},
        "model": SIZE | GROUPED,
        "training__globalBatchSize": 16,
        "runtime": {"volumes": [{"name": "data", "mountPath": "/data", "claimName": "shared"}]},
    }
    for group, feature in sorted(row):
        changes |= GROUPS[group][feature]
    if "expert" in changes.get("parallelism__ici", {}):
        changes.setdefault("model__experts", SLOTS)
    spec = make_spec(Path("/data/checkpoints"), Path("/data/text"), **changes)
    spec["model"] = {name: value for name, value in spec["model"].items() if value is not None}
    sample = {"prompt": "Once", "maxTokens": 3}
    held_out = {"name": "held-out", "everySteps": 2, "maxPerDeviceBatch": 1, "samples": [sample]}
    spec["evaluation"] = [spec["data"]["train"][0] | held_out]
    return spec


def validate_row(row: Row) -> ValidationResult:
    """Return the result of the validation of a row."""
    return validate_job("features", describe(row))


@cache
def list_rows() -> tuple[Row, ...]:
    """Return valid rows, with each mesh in turn. A feature joins if it adds the most new pairs to a valid row."""
    rng, covered, rows = Random(0), set[Row](), []  # noqa: S311  # it draws no secret
    for number in range(NUM_ROWS):
        row = _find_row(rng, list(GROUPS[MESH])[number % len(GROUPS[MESH])], covered)
        covered |= set(list_pairs(row))
        rows.append(row)
    return tuple(rows)


def list_pairs(row: Row) -> Iterator[Row]:
    """Yield the pairs of features of a row."""
    yield from map(frozenset, combinations(sorted(row), 2))


def _find_row(rng: Random, mesh: str, covered: set[Row]) -> Row:
    row: Row = frozenset({(MESH, mesh)})
    groups = [group for group in GROUPS if group != MESH and rng.random() > SKIPPED]
    rng.shuffle(groups)
    groups.sort(key=lambda group: group != OBJECTIVE)  # first, because it excludes the most others
    for group in groups:
        candidates = [row | {(group, feature)} for feature in GROUPS[group]]
        rng.shuffle(candidates)
        candidates.sort(key=lambda candidate: -len(set(list_pairs(candidate)) - covered))
        row = next((candidate for candidate in candidates if not validate_row(candidate).problems), row)
    return row
