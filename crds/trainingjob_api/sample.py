"""A sample spec with every field set: the source of example values for missing fields.

Its values also replace unusable ones, so that the rest of a spec can still be validated.
"""

from typing import Any

SAMPLE: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "2x2", "count": 1, "min": 1, "max": 2, "allowed": [1, 2]},
    "parallelism": {
        "strategy": "explicit",
        "ici": {"data": 1, "stage": 1, "fsdp": -1, "expert": 1, "context": 1, "tensor": 1},
        "dcn": {"data": -1, "stage": 1, "fsdp": 1, "expert": 1, "context": 1, "tensor": 1},
        "pipeline": {"microbatches": 8},
        "rules": {
            "embed": ["fsdp", "context"],
            "vocab": ["tensor", "expert"],
            "heads": ["tensor"],
            "kvHeads": ["tensor"],
            "mlp": ["tensor"],
            "experts": ["expert"],
            "expertEmbed": ["fsdp", "context"],
        },
        "shardOptimizerOverData": True,
    },
    "model": {
        "vocabSize": 257,
        "embedDim": 128,
        "mlpDim": 384,
        "numLayers": 4,
        "numHeads": 4,
        "numKvHeads": 4,
        "headDim": 32,
        "ropeTheta": 10000.0,
        "normEpsilon": 1e-5,
        "tieEmbeddings": False,
        "initScale": 0.02,
        "experts": {
            "count": 8,
            "perToken": 2,
            "scoring": "softmax",
            "normalizeWeights": True,
            "weightScale": 1.0,
            "capacityFactor": 1.25,
            "groupLength": 64,
            "shared": 1,
            "loadBalanceWeight": 0.01,
        },
    },
    "data": {
        "train": [
            {
                "name": "text",
                "type": "jsonl",
                "path": "/data/train",
                "pattern": "**/*.jsonl",
                "exclude": ["*.bak"],
                "column": "text",
            }
        ]
    },
    "tokenizer": {"type": "tokenizers", "path": "/data/tokenizer.json", "endOfDocument": "</s>"},
    "training": {"steps": 1000, "globalBatchSize": 16, "sequenceLength": 128, "seed": 0, "maxPerDeviceBatch": 8},
    "optimizer": {
        "type": "adamw",
        "learningRate": 0.001,
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-8,
        "weightDecay": 0.1,
        "clipNorm": 1.0,
    },
    "schedule": {"type": "cosine", "warmupSteps": 100, "finalFraction": 0.1},
    "precision": {"compute": "float32", "params": "float32"},
    "memory": {"remat": "none", "scan": True},
    "checkpoint": {
        "uri": "/shared/run",
        "save": {"everySteps": 100, "every": "15m"},
        "keep": {"last": 3, "everySteps": 1000, "best": {"evaluation": "held-out", "count": 1}},
        "failAfter": "1h",
        "snapshots": {"everySteps": 10},
        "restore": {"broadcastFrom": "oneReplica"},
        "backup": {"uri": "/archive/run", "every": "1h", "keep": 3},
        "initializeFrom": {"uri": "/shared/base", "step": 5000, "allowPartial": False},
        "takeover": False,
    },
    "elastic": {
        "policy": "wait",
        "shrinkAfter": "10m",
        "maxRestarts": 10,
        "maxRestartsWithoutCommit": 5,
        "nodeExclusion": "report",
        "growCooldown": "1m",
        "heartbeatTimeout": "4s",
        "progressTimeout": "30s",
        "hotStandby": False,
        "faultInjection": "allowed",
    },
    "protection": {
        "nonFinite": "stop",
        "spikes": {"action": "stop", "sigma": 6.0, "window": 128},
        "compareReplicas": {"everySteps": 100},
        "maxRollbacks": 3,
    },
    "evaluation": [
        {
            "name": "held-out",
            "type": "jsonl",
            "path": "/data/held-out",
            "pattern": "**/*.jsonl",
            "exclude": ["*.bak"],
            "column": "text",
            "everySteps": 100,
            "numBatches": 8,
        }
    ],
    "metrics": {"everySteps": 10, "tensorboard": True},
    "runtime": {
        "image": "registry.example/trainer:1.0",
        "imagePullPolicy": "IfNotPresent",
        "imagePullSecrets": ["registry"],
        "serviceAccountName": "trainer",
        "env": [
            {
                "name": "LOG_LEVEL",
                "value": "info",
                "secretKeyRef": {"name": "keys", "key": "token"},
                "configMapKeyRef": {"name": "settings", "key": "level"},
            }
        ],
        "resources": {"cpu": "1", "memory": "2Gi"},
        "volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared", "readOnly": False}],
        "compileCache": {"enabled": True, "path": "/shared/cache"},
        "terminationGracePeriod": "60s",
    },
    "scheduling": {
        "queueName": "research",
        "priorityClassName": "research",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [
            {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60}
        ],
        "exclusiveTopology": "topology.example/rack",
    },
    "suspend": False,
    "ttlSecondsAfterFinished": 86400,
    "activeDeadlineSeconds": 604800,
}
"""Each field is valid by itself. Some fields exclude each other, so the sample as a whole is invalid."""


def sample_at(location: tuple[str | int, ...]) -> Any:  # None: the sample has no such field
    """Return the sample's value at a location; list items always use the first item of the sample."""
    value: Any = SAMPLE
    for part in location:
        key = 0 if isinstance(part, int) else part
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
