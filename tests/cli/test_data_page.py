"""The examples of docs/data.md: its job runs, and its sections are valid."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from tests.cli.test_weights import trainingjob
from trainingjob_api.spec.data import Data
from trainingjob_api.spec.evaluation import Evaluation

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
FILES = {"jsonl": "corpus/web.jsonl", "yaml": "formats.yaml"}
SECTIONS = [text for kind, text in BLOCKS if kind == "yaml" and "apiVersion" not in text]


def job_block(kind: str) -> str:
    return next(text for language, text in BLOCKS if language == kind and (kind != "yaml" or "apiVersion" in text))


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    for kind, name in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(job_block(kind))
    blocks = [text for kind, text in BLOCKS if kind == "console"]
    commands = [line.removeprefix("$ trainingjob ") for block in blocks for line in block.splitlines()]

    outputs = []
    for command in commands:
        done = trainingjob(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout + done.stderr)

    (prepared,) = (output for command, output in zip(commands, outputs, strict=True) if "prepare" in command)
    shown = next(text for kind, text in BLOCKS if not kind and text.startswith("text "))
    for line in shown.splitlines():
        assert line in prepared.splitlines()
    assert "skipped: 1 bad record (web.jsonl)" in outputs[-1]
    assert "skipped 1 bad record: 1 in web.jsonl" in outputs[-1]


@pytest.mark.parametrize("section", SECTIONS, ids=range(len(SECTIONS)))
def test_sections_of_the_page_are_valid(section: str) -> None:
    sections = yaml.safe_load(section)
    sources = [{"name": "text", "path": "/text"}]

    assert Data.model_validate({"train": sources} | sections.get("data", {})).train
    assert TypeAdapter(tuple[Evaluation, ...]).validate_python(sections.get("evaluation", [])) is not None
