"""The example of docs/fine-tuning.md: its files and commands train on the answers."""

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
FILES = {"jsonl": "chat/train.jsonl", "jinja": "chat/chatml.jinja", "yaml": "chat.yaml"}


def first_block(kind: str) -> str:
    return next(text for language, text in BLOCKS if language == kind)


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    for kind, name in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(first_block(kind))
    commands = [line.removeprefix("$ trainingjob ") for line in first_block("console").splitlines()]

    for command in commands:
        done = trainingjob(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    lines = (tmp_path / "runs/chat/metrics/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) >= 2
    assert losses[-1] < losses[0]


def test_sections_of_the_page_are_valid() -> None:
    _, folder, pairs = (yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml")

    assert Tokenizer.model_validate(folder["tokenizer"]).type == "huggingFace"
    assert Data.model_validate(pairs["data"]).train[0].completion == "answer"
