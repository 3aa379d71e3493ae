"""The examples of docs/distillation.md: their commands train a teacher and its student."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_weights import trainingjob
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.teacher import describe_teacher

PAGE = (Path(__file__).parents[2] / "docs/distillation.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
JOBS = ("teacher", "student")


def blocks_of(kind: str) -> list[str]:
    return [text for language, text in BLOCKS if language == kind]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    texts = blocks_of("yaml")
    for name, text in zip(JOBS, texts, strict=False):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "stored.yaml").write_text(yaml.safe_dump(stored_job(yaml.safe_load(texts[1]), texts[3])))
    lines = "".join(blocks_of("console")).splitlines()

    for line in lines:
        done = trainingjob(*shlex.split(line.removeprefix("$ trainingjob ")), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "teacher of" in done.stdout or " plan " not in line

    metrics = tmp_path / "runs/student/metrics/metrics.jsonl"
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert losses[-1] < losses[0]
    divergences = [step["teacher_divergence"] for step in steps if "teacher_divergence" in step]
    assert divergences[-1] < divergences[0]
    assert any("held_out_teacher_divergence" in step for step in steps)
    stored = (tmp_path / "runs/stored/metrics/metrics.jsonl").read_text().splitlines()
    first, *_, last = (step["teacher_divergence"] for step in map(json.loads, stored) if "teacher_divergence" in step)
    assert 0 < last < first


def stored_job(student: dict[str, Any], section: str) -> dict[str, Any]:
    """Return the job of a student with the section that names stored probabilities."""
    checkpoint = student["spec"]["checkpoint"] | {"uri": "/shared/runs/stored"}
    return student | {"spec": student["spec"] | yaml.safe_load(section) | {"checkpoint": checkpoint}}


def test_sections_of_the_page_are_valid() -> None:
    *jobs, published, _, schedules, features = map(yaml.safe_load, blocks_of("yaml"))

    student = parse_spec(jobs[1]["spec"])
    distill = {"type": "distill", "distill": published | schedules}
    other = parse_spec(jobs[1]["spec"] | {"objective": distill})
    imitating = {"type": "distill", "distill": jobs[1]["spec"]["objective"]["distill"] | features}
    assert not parse_spec(jobs[1]["spec"] | {"objective": imitating}).problems
    assert not student.problems
    assert not parse_spec(stored_job(jobs[1], blocks_of("yaml")[3])["spec"]).problems
    assert not other.problems
    assert student.spec
    assert other.spec
    teacher, large = describe_teacher(student.spec), describe_teacher(other.spec)
    assert teacher
    assert large
    assert teacher.model == parse_spec(jobs[0]["spec"]).spec.model  # type: ignore[union-attr]
    assert large.model.preset == "llama3.1-8b"
    assert other.spec.objective
    assert other.spec.objective.distill
    assert other.spec.objective.distill.weight_schedule
