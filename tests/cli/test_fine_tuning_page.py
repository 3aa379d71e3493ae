"""The examples of docs/fine-tuning.md: their files and commands train on answers, and on pairs of answers."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.test_weights import trainingjob
from trainingjob_api.spec.data import Data
from trainingjob_api.spec.tokenizer import Tokenizer

PAGE = (Path(__file__).parents[2] / "docs/fine-tuning.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
FILES = {
    "chat/train.jsonl": ("jsonl", 0),
    "chat/chatml.jinja": ("jinja", 0),
    "chat.yaml": ("yaml", 0),
    "pairs/train.jsonl": ("jsonl", 1),
    "preferences.yaml": ("yaml", 3),
}
"""Kind of the block that holds each file, and how many of this kind come before."""


def blocks_of(kind: str) -> list[str]:
    return [text for language, text in BLOCKS if language == kind]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    for name, (kind, number) in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(blocks_of(kind)[number])
    lines = "".join(blocks_of("console")).splitlines()
    commands = [line.removeprefix("$ trainingjob ") for line in lines]

    for command in commands:
        done = trainingjob(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    metrics = {name: read_metrics(tmp_path / "runs" / name) for name in ("chat", "preferences")}
    for of_job in metrics.values():
        losses = [line["loss"] for line in of_job]
        assert len(losses) >= 2
        assert losses[-1] < losses[0]
    first, *_, last = metrics["preferences"]
    assert first["reward_margin"] == 0, "the model is the reference before the first step"
    assert last["reward_accuracy"] == 1


def read_metrics(uri: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (uri / "metrics/metrics.jsonl").read_text().splitlines()]


def test_sections_of_the_page_are_valid() -> None:
    _, folder, completions, _ = map(yaml.safe_load, blocks_of("yaml"))

    assert Tokenizer.model_validate(folder["tokenizer"]).type == "huggingFace"
    assert Data.model_validate(completions["data"]).train[0].completion == "answer"
