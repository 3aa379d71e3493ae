"""Jobs whose checkpoints and exports are in buckets are valid, and their plans name the bucket."""

from typing import Any

import pytest
import yaml

from tests.cli.test_offline import call

CORPUS = {"name": "corpus", "claimName": "corpus", "mountPath": "/corpus", "readOnly": True}
TOKENIZER = {"type": "huggingFace", "path": "/corpus/tokenizer"}
PRETRAINING = {
    "slices": {"accelerator": "tpu-v5p", "topology": "4x4x4", "min": 2, "max": 4},
    "parallelism": {"ici": {"fsdp": -1, "tensor": 4}, "dcn": {"data": -1}},
    "model": {"preset": "llama3.1-8b"},
    "tokenizer": TOKENIZER,
    "data": {
        "train": [{"name": "web", "format": "arrayRecord", "path": "/corpus/web"}],
        "packing": {"type": "concat", "isolateDocuments": True},
    },
    "training": {"steps": 200000, "globalBatchSize": 1024, "sequenceLength": 8192},
    "optimizer": {"learningRate": 3.0e-4, "weightDecay": {"rate": 0.1}},
    "schedule": {"type": "wsd", "warmup": "1%"},
    "memory": {"remat": "minimal"},
    "checkpoint": {
        "uri": "gs://runs/llama3-8b",
        "save": {"everySteps": 500, "every": "15m"},
        "keep": {"last": 3, "stages": [{"every": 10000}]},
        "snapshots": {"everySteps": 10},
        "export": {"huggingFace": {"uri": "gs://models/llama3-8b", "when": "end"}},
    },
    "runtime": {"image": "registry.example/trainer:0.1.0", "volumes": [CORPUS], "resources": {"memory": "100Gi"}},
}
TUNING = {
    "slices": {"accelerator": "nvidia-h100", "topology": "8", "min": 1, "max": 4},
    "model": {"preset": "qwen3-8b"},
    "lora": {"rank": 32, "alpha": 64, "targets": ["*.attention.*"]},
    "tokenizer": TOKENIZER,
    "data": {
        "train": [{"name": "chats", "format": "jsonl", "path": "/corpus/chats", "messages": "messages"}],
        "packing": {"type": "bestFit", "isolateDocuments": True},
    },
    "objective": {"type": "sft", "sft": {"lossOn": "assistant"}},
    "training": {"epochs": 3, "globalBatchSize": 64, "sequenceLength": 8192},
    "optimizer": {"learningRate": 1.0e-4},
    "memory": {"remat": "minimal"},
    "checkpoint": {
        "uri": "s3://team/runs/chat-1",
        "initializeFrom": {"huggingFace": {"repository": "Qwen/Qwen3-8B"}},
        "export": {"huggingFace": {"uri": "s3://team/models/chat-1", "when": "end"}},
    },
    "runtime": {"image": "registry.example/trainer:0.1.0", "volumes": [CORPUS]},
}
PROGRAM = {
    "slices": {"accelerator": "tpu-v6e", "topology": "4x8", "min": 1, "max": 4},
    "program": {"command": ["python", "-m", "maxtext.trainers.pre_train.train", "/config/run.yml"]},
    "checkpoint": {"uri": "gs://runs/mt-1"},
    "runtime": {"image": "registry.example/maxtext:0.2.5"},
}
JOBS = {
    "pretraining": (PRETRAINING, "checkpoints: in gs://runs/llama3-8b, without a volume"),
    "tuning": (TUNING, "checkpoints: in s3://team/runs/chat-1, without a volume"),
    "a program": (PROGRAM, "run folder: gs://runs/mt-1"),
}


@pytest.mark.parametrize(("spec", "line"), JOBS.values(), ids=JOBS)
def test_a_job_with_its_results_in_buckets_has_a_plan(spec: dict[str, Any], line: str) -> None:
    job = {"apiVersion": "trainingjob.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"}, "spec": spec}

    planned = call("plan", "-", given=yaml.safe_dump(job))

    assert planned.code == 0, planned.err
    assert any(found.startswith(line) for found in planned.out.splitlines()), planned.out
