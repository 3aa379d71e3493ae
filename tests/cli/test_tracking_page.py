"""The example of docs/tracking-and-profiling.md: its commands trace the steps that the page names."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.test_weights import trainingjob
from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.spec.profiling import Profiling

PAGE = (Path(__file__).parents[2] / "docs/tracking-and-profiling.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
METRICS, STATISTICS, JOB, PROGRAMS = (text for language, text in BLOCKS if language == "yaml")


@pytest.mark.slow
def test_the_commands_of_the_page_trace_its_steps(tmp_path: Path) -> None:
    (tmp_path / "traced.yaml").write_text(JOB)
    commands = next(text for language, text in BLOCKS if language == "console")

    for line in commands.splitlines():
        done = trainingjob(*shlex.split(line.removeprefix("$ trainingjob ")), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    runs = tmp_path / "runs/traced/profiles/plugins/profile"
    traces = [path for path in runs.rglob("slice*") if path.is_file()]
    assert len(traces) == 4
    dumps = list((tmp_path / "runs/traced/profiles/hlo").rglob("*.txt"))
    names = {path.relative_to(tmp_path).as_posix() for path in (*traces, *dumps)}
    assert set(re.findall(r"^runs/traced/\S+", PAGE, flags=re.MULTILINE)) < names
    lines = map(json.loads, (tmp_path / "runs/traced/metrics/metrics.jsonl").read_text().splitlines())
    norms = {line["step"]: line["param_norm/embedding"] for line in lines if "param_norm/embedding" in line}
    assert norms.keys() == {10, 20}
    assert sorted(path.name for path in runs.iterdir()) == ["step-000000005.g1", "step-000000015.g1"]


def test_the_sections_of_the_page_are_valid() -> None:
    statistics = Metrics.model_validate(yaml.safe_load(STATISTICS)["metrics"]).statistics
    assert statistics
    assert statistics.every_steps == 100
    metrics = Metrics.model_validate(yaml.safe_load(METRICS)["metrics"])

    assert metrics.mlflow
    assert metrics.mlflow.tags == {"size": "7b"}
    assert metrics.trackio
    assert metrics.trackio.address == "https://team-metrics.hf.space"
    assert Profiling.model_validate(yaml.safe_load(PROGRAMS)["profiling"]).hlo == "text"
