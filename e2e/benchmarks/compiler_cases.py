"""Small jobs for the comparison of the planner's estimates with real compilers; each compiles in about a minute.

Each job covers another feature: sharded or replicated parameters, tensor parallelism, context parallelism, slices,
remat, gradient accumulation, experts, a sharded optimizer, other optimizers, pairs, long sequences, or rings.
"""

from typing import Any

from trainingjob_api.spec.job import TrainingJobSpec

type Section = dict[str, Any]


def model(dim: int, mlp: int, heads: int, kv_heads: int, head: int, vocab: int, layers: int, **others: Any) -> Section:
    """Return the `model` section."""
    names = ("embedDim", "mlpDim", "numHeads", "numKvHeads", "headDim", "vocabSize", "numLayers")
    return dict(zip(names, (dim, mlp, heads, kv_heads, head, vocab, layers), strict=True)) | others


def latent(model: Section, **ranks: int) -> Section:
    """Return the `model` section with latent attention."""
    return {name: value for name, value in model.items() if name not in {"numKvHeads", "headDim"}} | {
        "latentAttention": ranks
    }


def training(batch: int, length: int, max_per_device_batch: int) -> Section:
    """Return the `training` section."""
    return {
        "steps": 1000,
        "globalBatchSize": batch,
        "sequenceLength": length,
        "maxPerDeviceBatch": max_per_device_batch,
    }


def job(accelerator: str, topology: str, ici: Section, *, slices: int = 1, **sections: Any) -> TrainingJobSpec:
    """Return a spec; sections that are not given are the same in every row."""
    spec: Section = {
        "slices": {"accelerator": accelerator, "topology": topology, "count": slices},
        "parallelism": {"ici": ici, "dcn": {"data": -1}},
        "data": {"train": [{"name": "text", "path": "/data/text"}]},
        "optimizer": {"learningRate": 0.001},
        "checkpoint": {"uri": "/data/runs"},
        "runtime": {"volumes": [{"name": "data", "claimName": "data", "mountPath": "/data"}]},
    }
    return TrainingJobSpec.model_validate(spec | sections)


WIDE = model(1024, 4096, 8, 4, 128, 32768, 4)
DEEP = model(1024, 4096, 8, 4, 128, 8192, 6)
SMALL = model(512, 2048, 8, 8, 64, 8192, 6)
BYTES = model(512, 2048, 8, 2, 64, 512, 6)
ROUTED = model(1024, 2048, 8, 4, 128, 8192, 4, experts={"count": 8, "perToken": 2, "groupLength": 512})
ROWS_OF_FOUR = training(32, 1024, 4)
FULL = {"remat": "full"}
HEAVY = model(2048, 8192, 16, 4, 128, 8192, 8)  # its state takes more memory than its activations
VOCABULARY = model(1024, 4096, 8, 4, 128, 131072, 2)
TWO_OF_LLAMA = model(4096, 14336, 32, 8, 128, 128256, 2)  # values that fit in no vector memory, unlike those of others
WINDOWS = DEEP | {
    "attention": {"window": 256},
    "layers": {"pattern": [{"attention": "window"}, {"attention": "full"}]},
}
LATENT = latent(DEEP, queryRank=512, keyValueRank=256, ropeDim=64, noRopeDim=128, valueDim=128)
LATENT_KEYS = latent(SMALL, keyValueRank=128, ropeDim=32, noRopeDim=64, valueDim=64)
DROPLESS = ROUTED | {"experts": {"count": 8, "perToken": 2, "dispatch": "dropless"}}
ADAPTERS = {"rank": 16, "alpha": 32, "targets": ["*.attention.*"]}
FROM_BASE = {"uri": "/data/runs", "initializeFrom": {"uri": "/data/base"}}
MINIMAL = {"remat": "minimal"}
OFFLOADED = {"remat": "custom", "save": ["key", "value"], "offload": ["layerInput", "query", "mlpGate", "mlpUp"]}
NARROW = {"gradients": "bfloat16", "logits": "bfloat16", "moments": "bfloat16"}
CHUNKS = {"lossChunks": 8}
FLOAT32 = {"compute": "float32"}
STATE_ON_HOST = {"remat": "full", "offload": ["optimizer"]}
ADAFACTOR, MUON = ({"type": kind, "learningRate": 0.001} for kind in ("adafactor", "muon"))
TRAINED_NORMS = {"learningRate": 0.001, "trainable": ["*_norm.scale"]}
PAIRS = {"train": [{"name": "pairs", "path": "/data/pairs", "format": "jsonl", "chosen": "good", "rejected": "bad"}]}
FURTHER = {"multiTokenPrediction": {"depth": 1}}
INT8, FP8 = ({"quantization": {"type": kind}} for kind in ("int8", "fp8"))
SHALLOW = model(1024, 4096, 8, 4, 128, 8192, 4)
TEACHER = {"model": SHALLOW, "initializeFrom": {"uri": "/data/teacher", "step": 1}}
FEATURES = {"layers": [{"student": layer, "teacher": layer} for layer in (1, 4)]}
COMPARED = {"type": "distill", "distill": {"teacher": TEACHER, "features": FEATURES}}
REST = {"fsdp": -1}
STAGES = {"ici": {"fsdp": 2, "stage": 2}}
CIRCULAR = {"pipeline": {"schedule": "circular"}}
ALTERNATING = {"pipeline": {"schedule": "oneForwardOneBackward"}}
RING = {"context": {"exchange": "ring"}}
OVER_DATA = {"ici": {"data": -1}, "shardOptimizerOverData": True}

COMPILER_CASES: dict[str, TrainingJobSpec] = {
    "v5e 2x2 fsdp": job("tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR),
    "v5e 2x2 fsdp, remat": job("tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR, memory=FULL),
    "v5e 2x2 tensor": job("tpu-v5e", "2x2", {"tensor": -1}, model=WIDE, training=training(8, 1024, 4)),
    "v5e 2x2 data": job("tpu-v5e", "2x2", {"data": -1}, model=WIDE, training=ROWS_OF_FOUR),
    "v5p 2x2x2 fsdp tensor": job(
        "tpu-v5p", "2x2x2", {"fsdp": 4, "tensor": 2}, model=WIDE, training=training(16, 1024, 4)
    ),
    "v5p 2x2x2 fsdp, remat": job("tpu-v5p", "2x2x2", REST, model=WIDE, training=training(64, 1024, 4), memory=FULL),
    "v5p 2x2x1 fsdp context": job(
        "tpu-v5p", "2x2x1", {"fsdp": 2, "context": 2}, model=WIDE, training=training(8, 2048, 4)
    ),
    "v5p 2x2x1 fsdp stage": job(
        "tpu-v5p", "2x2x1", {"fsdp": 2, "stage": 2}, model=WIDE, training=training(32, 1024, 2)
    ),
    "v5p 2x2x1 fsdp, 2 slices": job("tpu-v5p", "2x2x1", REST, slices=2, model=DEEP, training=training(64, 1024, 4)),
    "v6e 2x2 fsdp, 2 slices, remat": job(
        "tpu-v6e", "2x2", REST, slices=2, model=WIDE, training=training(64, 1024, 4), memory=FULL
    ),
    "v6e 4x4 fsdp tensor, remat": job(
        "tpu-v6e", "4x4", {"fsdp": 8, "tensor": 2}, model=WIDE, training=training(64, 1024, 4), memory=FULL
    ),
    "v6e 4x4 fsdp, remat": job("tpu-v6e", "4x4", REST, model=WIDE, training=training(64, 1024, 4), memory=FULL),
    "v6e 2x2 data fsdp": job("tpu-v6e", "2x2", {"data": 2, "fsdp": 2}, model=DEEP, training=ROWS_OF_FOUR),
    "v5e 2x2 fsdp tensor, 2 slices": job(
        "tpu-v5e", "2x2", {"fsdp": 2, "tensor": 2}, slices=2, model=WIDE, training=ROWS_OF_FOUR
    ),
    "v5e 2x2 data, optimizer over data": job(
        "tpu-v5e", "2x2", {}, model=WIDE, training=ROWS_OF_FOUR, parallelism=OVER_DATA
    ),
    "v5p 2x2x1 expert, remat": job(
        "tpu-v5p", "2x2x1", {"expert": -1}, model=ROUTED, training=ROWS_OF_FOUR, memory=FULL
    ),
    "v6e 2x2 expert tensor": job(
        "tpu-v6e", "2x2", {"expert": 2, "tensor": 2}, model=ROUTED, training=training(16, 1024, 4)
    ),
    **{
        f"v5e 2x2 fsdp, {remat}": job(
            "tpu-v5e", "2x2", REST, model=DEEP, training=ROWS_OF_FOUR, memory={"remat": remat}
        )
        for remat in ("minimal", "saveMatmuls", "saveAttention")
    },
    "v5p 2x2x2 fsdp tensor, minimal": job(
        "tpu-v5p", "2x2x2", {"fsdp": 4, "tensor": 2}, model=DEEP, training=training(32, 1024, 4), memory=MINIMAL
    ),
    "v6e 2x2 fsdp, offloaded": job("tpu-v6e", "2x2", REST, model=DEEP, training=ROWS_OF_FOUR, memory=OFFLOADED),
    "v5e 2x2 fsdp, optimizer offloaded": job(
        "tpu-v5e", "2x2", REST, model=HEAVY, training=training(16, 1024, 4), memory=STATE_ON_HOST
    ),
    "v5p 2x2x1 fsdp stage, minimal": job(
        "tpu-v5p", "2x2x1", {"fsdp": 2, "stage": 2}, model=DEEP, training=training(32, 1024, 2), memory=MINIMAL
    ),
    "v5e 2x2 fsdp, narrow sums": job("tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR, precision=NARROW),
    "v5e 2x2 fsdp, loss in chunks": job("tpu-v5e", "2x2", REST, model=VOCABULARY, training=ROWS_OF_FOUR, memory=CHUNKS),
    "v5e 2x2 data, loss in chunks, tied": job(
        "tpu-v5e", "2x2", {"data": -1}, model=VOCABULARY | {"tieEmbeddings": True}, training=ROWS_OF_FOUR
    ),
    "v5p 2x2x2 fsdp tensor, loss in chunks": job(
        "tpu-v5p", "2x2x2", {"fsdp": 4, "tensor": 2}, model=VOCABULARY, training=training(32, 1024, 4), memory=CHUNKS
    ),
    "v5p 2x2x1 fsdp stage, loss in chunks": job(
        "tpu-v5p",
        "2x2x1",
        {},
        model=VOCABULARY,
        training=training(32, 1024, 2),
        memory=CHUNKS,
        parallelism={"ici": {"fsdp": 2, "stage": 2}, "pipeline": {"microbatches": 4}},
    ),
    "v5p 2x2x1 fsdp stage, circular": job(
        "tpu-v5p", "2x2x1", {}, model=WIDE, training=training(32, 1024, 2), parallelism=STAGES | CIRCULAR
    ),
    "v5p 2x2x1 fsdp stage, one forward one backward": job(
        "tpu-v5p", "2x2x1", {}, model=WIDE, training=training(32, 1024, 2), parallelism=STAGES | ALTERNATING
    ),
    "v5p 2x2x1 fsdp stage, further tokens": job(
        "tpu-v5p", "2x2x1", {}, model=WIDE | FURTHER, training=training(32, 1024, 2), parallelism=STAGES
    ),
    "v5p 2x2x1 fsdp stage, further tokens, one forward one backward": job(
        "tpu-v5p", "2x2x1", {}, model=WIDE | FURTHER, training=training(32, 1024, 2), parallelism=STAGES | ALTERNATING
    ),
    "v5p 2x2x1 fsdp stage, compared layers, one forward one backward": job(
        "tpu-v5p",
        "2x2x1",
        {},
        model=SHALLOW,
        training=training(32, 1024, 2),
        parallelism=STAGES | ALTERNATING,
        objective=COMPARED,
    ),
    "v5p 2x2x1 stage, compared layers": job(
        "tpu-v5p",
        "2x2x1",
        {},
        model=SHALLOW,
        training=training(16, 1024, 2),
        parallelism={"ici": {"stage": 4}, "pipeline": {"microbatches": 8}},
        objective=COMPARED,
    ),
    "v5e 2x2 fsdp, 4,096 tokens": job("tpu-v5e", "2x2", REST, model=SMALL, training=training(8, 4096, 2)),
    "v6e 2x2 fsdp tensor, 4,096 tokens": job(
        "tpu-v6e", "2x2", {"fsdp": 2, "tensor": 2}, model=DEEP, training=training(4, 4096, 1)
    ),
    "v5p 2x2x1 context ring": job(
        "tpu-v5p", "2x2x1", {}, model=SMALL, training=training(4, 8192, 4), parallelism={"ici": {"context": 4}} | RING
    ),
    "v5p 2x2x2 tensor, 131,072 tokens, remat": job(
        "tpu-v5p", "2x2x2", {"tensor": -1}, model=TWO_OF_LLAMA, training=training(1, 131072, 1), memory=FULL
    ),
    "v5p 2x2x2 tensor, 131,072 tokens, remat, sharded stream": job(
        "tpu-v5p",
        "2x2x2",
        {},
        model=TWO_OF_LLAMA,
        training=training(1, 131072, 1),
        memory=FULL,
        parallelism={"ici": {"tensor": -1}, "shardStreamOverTensor": True},
    ),
    "v5p 2x2x2 fsdp, 131,072 tokens, remat": job(
        "tpu-v5p", "2x2x2", REST, model=TWO_OF_LLAMA, training=training(8, 131072, 1), memory=FULL
    ),
    "v6e 2x2 fsdp tensor, int8": job(
        "tpu-v6e", "2x2", {"fsdp": 2, "tensor": 2}, model=DEEP, training=training(16, 1024, 4), precision=INT8
    ),
    "v5e 2x2 fsdp, int8, remat": job(
        "tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR, precision=INT8, memory=FULL
    ),
    "v6e 2x2 fsdp, fp8": job("tpu-v6e", "2x2", REST, model=DEEP, training=ROWS_OF_FOUR, precision=FP8),
    "v5p 2x2x1 expert, int8, remat": job(
        "tpu-v5p", "2x2x1", {"expert": -1}, model=ROUTED, training=ROWS_OF_FOUR, precision=INT8, memory=FULL
    ),
    "v5p 2x2x1 fsdp, windows": job("tpu-v5p", "2x2x1", REST, model=WINDOWS, training=training(16, 2048, 2)),
    "v5p 2x2x1 fsdp tensor, latent attention": job(
        "tpu-v5p", "2x2x1", {"fsdp": 2, "tensor": 2}, model=LATENT, training=training(16, 1024, 4)
    ),
    "v5p 2x2x1 fsdp, dropless": job("tpu-v5p", "2x2x1", REST, model=DROPLESS, training=ROWS_OF_FOUR),
    "v5p 2x2x1 expert, dropless, remat": job(
        "tpu-v5p", "2x2x1", {"expert": -1}, model=DROPLESS, training=ROWS_OF_FOUR, memory=FULL
    ),
    "v5e 2x2 fsdp, adapters": job(
        "tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR, lora=ADAPTERS, checkpoint=FROM_BASE
    ),
    "v5e 2x2 fsdp, adapters, remat": job(
        "tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR, lora=ADAPTERS, checkpoint=FROM_BASE, memory=FULL
    ),
    "v5e 2x2 fsdp, trained norms": job(
        "tpu-v5e", "2x2", REST, model=WIDE, training=ROWS_OF_FOUR, optimizer=TRAINED_NORMS
    ),
    "v5e 2x2 fsdp, adafactor": job("tpu-v5e", "2x2", REST, model=DEEP, training=ROWS_OF_FOUR, optimizer=ADAFACTOR),
    "v5e 2x2 fsdp, muon": job("tpu-v5e", "2x2", REST, model=DEEP, training=ROWS_OF_FOUR, optimizer=MUON),
    "cpu 1x8 fsdp, bfloat16": job("cpu", "1x8", REST, model=SMALL, training=training(32, 256, 2)),
    "cpu 1x8 fsdp tensor": job(
        "cpu", "1x8", {"fsdp": 4, "tensor": 2}, model=SMALL, training=training(32, 256, 2), precision=FLOAT32
    ),
    "cpu 1x8 fsdp tensor, loss in chunks": job(
        "cpu",
        "1x8",
        {"fsdp": 4, "tensor": 2},
        model=SMALL,
        training=training(32, 256, 2),
        precision=FLOAT32,
        memory=CHUNKS,
    ),
    "cpu 1x8 fsdp tensor, latent keys": job(
        "cpu", "1x8", {"fsdp": 2, "tensor": 4}, model=LATENT_KEYS, training=training(16, 256, 2), precision=FLOAT32
    ),
    "cpu 1x4 fsdp, 2 slices, remat": job(
        "cpu", "1x4", REST, slices=2, model=SMALL, training=training(32, 256, 2), precision=FLOAT32, memory=FULL
    ),
    "cpu 1x4 fsdp, 2,048 tokens": job("cpu", "1x4", REST, model=SMALL, training=training(8, 2048, 2)),
    "cpu 1x4 context ring, 2,048 tokens": job(
        "cpu", "1x4", {}, model=BYTES, training=training(4, 2048, 4), parallelism={"ici": {"context": 4}} | RING
    ),
    "cpu 1x4 fsdp tensor, 4,096 tokens": job(
        "cpu", "1x4", {"fsdp": 2, "tensor": 2}, model=BYTES, training=training(8, 4096, 1), precision=FLOAT32
    ),
    "cpu 1x8 fsdp, adafactor": job("cpu", "1x8", REST, model=SMALL, training=training(32, 256, 2), optimizer=ADAFACTOR),
    "cpu 1x8 fsdp, muon": job("cpu", "1x8", REST, model=SMALL, training=training(32, 256, 2), optimizer=MUON),
    "cpu 1x8 fsdp, pairs": job(
        "cpu", "1x8", REST, model=SMALL, training=training(16, 256, 2), data=PAIRS, objective={"type": "dpo"}
    ),
}
