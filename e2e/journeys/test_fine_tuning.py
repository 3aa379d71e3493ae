"""A fine-tune from bucket to bucket: adapters are trained on conversations while a slice is lost and returns."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.topology import HOST_ADDRESS
from e2e.node_faults import power_off_nodes, slice_nodes
from e2e.object_stores.servers import BUCKET, ObjectServer, serve_s3
from e2e.product import ROOT, TRAININGJOB, Manifest, Product, load_example
from e2e.status import generation_of, is_full, step_of, steps_trained
from tests.cli.test_weights import read_tensors
from trainingjob_trainer.store.opening import open_store

pytestmark = pytest.mark.cluster

TIMEOUT_SECONDS = 300
MANY_STEPS = 1_000_000
MORE_STEPS = 600
"""Steps after the return of the slice: more than are trained until an edit has its effect."""
WEIGHTS = ROOT / "tests/fixtures/huggingface/llama"
WORDS = tuple(f"word{number}" for number in range(60))
END = "</s>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + ' </s> ' }}{% endgeneration %}"
    "{% else %}{{ message.content + ' ' }}{% endif %}{% endfor %}"
)


@pytest.fixture
def server(drilled: Cluster, tmp_path: Path) -> Iterator[ObjectServer]:
    """Return an object store that the pods reach, with a base model and conversations."""
    if not isinstance(drilled, LocalCluster):
        pytest.skip("pods of another cluster do not reach a server of this host")
    with serve_s3(tmp_path, HOST_ADDRESS) as running, patch.dict(os.environ, running.environment()):
        upload_inputs()
        yield running


def upload_inputs() -> None:
    """Write the base model and the conversations into the bucket."""
    store = open_store(f"s3://{BUCKET}")
    for name, content in describe_base().items():
        store.write(f"base/{name}", [content])
    store.write("chats/train.jsonl", [describe_chats()])


def describe_base() -> dict[str, bytes]:
    """Return the files of a small Llama with a tokenizer of words and a chat template, by name."""
    vocabulary = {word: place for place, word in enumerate(("<unk>", END, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([END])
    return {
        **{name: (WEIGHTS / name).read_bytes() for name in ("config.json", "model.safetensors")},
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": END}).encode(),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
    }


def describe_chats() -> bytes:
    """Return conversations in which the answer counts on from the question."""
    lines = []
    for number in range(50):
        question, answer = (" ".join(WORDS[number + at : number + at + 4]) for at in (0, 4))
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": messages}) + "\n")
    return "".join(lines).encode()


def make_job(server: ObjectServer) -> Manifest:
    """Return the example with a small model of the bucket and CPU slices."""
    manifest = load_example(
        "fine-tune",
        slices={"accelerator": "cpu", "topology": "1x1", "min": 1, "max": 2},
        model=yaml.safe_load(run_command("import", f"s3://{BUCKET}/base").stdout)["model"],
        lora__rank=4,
        lora__alpha=8,
        tokenizer={"type": "huggingFace", "path": f"s3://{BUCKET}/base"},
        training={"steps": MANY_STEPS, "globalBatchSize": 8, "sequenceLength": 64},
        precision={"compute": "float32"},
        checkpoint__uri=f"s3://{BUCKET}/run",
        checkpoint__save={"everySteps": 100},
        checkpoint__initializeFrom={"huggingFace": {"path": f"s3://{BUCKET}/base"}},
        checkpoint__export={"huggingFace": {"uri": f"s3://{BUCKET}/tuned"}},
        elastic={"growCooldown": "1s"},
        runtime={
            "resources": {"cpu": "250m", "memory": "1500Mi"},
            "env": [{"name": name, "value": value} for name, value in server.environment().items()],
        },
    )
    manifest["spec"]["data"]["train"][0]["path"] = f"s3://{BUCKET}/chats"
    return manifest


def test_a_fine_tune_reads_and_writes_buckets_and_loses_a_slice(
    product: Product, drilled: Cluster, server: ObjectServer, tmp_path: Path
) -> None:
    with product.namespace("journey-fine-tuning") as namespace:
        job = product.submit(namespace, make_job(server), name="chat")
        before = job.wait(
            "a saved step on both slices",
            lambda status: is_full(status) and status.get("checkpoint", {}).get("step", 0) > 0,
            TIMEOUT_SECONDS,
        )

        with power_off_nodes(drilled, slice_nodes(job, 1)):
            shrunk = job.wait(
                "steps on one slice",
                lambda status: generation_of(status) > generation_of(before) and steps_trained(status) > 0,
                TIMEOUT_SECONDS,
            )
        grown = job.wait(
            "steps on both slices again",
            lambda status: generation_of(status) > generation_of(shrunk) and is_full(status) and steps_trained(status),
            TIMEOUT_SECONDS,
        )
        job.patch({"training": {"steps": step_of(grown) + MORE_STEPS}})
        ended = job.wait_for_phase("Succeeded", TIMEOUT_SECONDS)

        assert all(attempt["firstStep"] > 0 for attempt in ended["attempts"][1:])
        sampled = run_command("sample", f"s3://{BUCKET}/tuned", "--prompt", " ".join(WORDS[4:8]), "--max-tokens", "4")
        assert f"4 tokens from s3://{BUCKET}/tuned" in sampled.stderr
        base, tuned = read_tensors(WEIGHTS), read_tensors(tmp_path / "data" / BUCKET / "tuned")
        assert base.keys() == tuned.keys()
        assert {name for name in base if base[name] != tuned[name]} == {name for name in base if "self_attn" in name}
        job.delete()


def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on this host, which reads the bucket with the same keys as the pods."""
    done = subprocess.run([TRAININGJOB, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
