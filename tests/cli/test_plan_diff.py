"""`plan --diff`: what changes between two jobs, in the spec and in everything that follows."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "crds/examples/demo.yaml"


@pytest.fixture
def diff(tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """Return a call of `plan --diff` from the demo to a demo with text replaced."""

    def call(replaced: dict[str, str], *options: str) -> SimpleNamespace:
        text = DEMO.read_text()
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        other = tmp_path / "other.yaml"
        other.write_text(text)
        result = CliRunner().invoke(app, ["plan", str(DEMO), "--diff", str(other), *options], catch_exceptions=False)
        return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)

    return call


MORE = {
    "max: 2": "max: 3",
    "embedDim: 256": "embedDim: 384",
    "globalBatchSize: 8": "globalBatchSize: 12",
    "growCooldown: 5s": "growCooldown: 9s",
    "scheduling:": "suspend: true\n  scheduling:",
}


def test_a_larger_job(diff: Callable[..., SimpleNamespace], golden: Callable[[Path, str], None]) -> None:
    result = diff(MORE)

    assert (result.code, result.err) == (1, "")
    golden(ROOT / "tests/golden/cli/diff.txt", result.out)


def test_json_has_every_change(diff: Callable[..., SimpleNamespace]) -> None:
    found = json.loads(diff(MORE, "--json").out)

    assert found["spec"][0] == {"path": "spec.slices.max", "before": 2, "after": 3}
    assert found["plan"][-4:] == [
        {"path": "allowed", "before": [1, 2], "after": [1, 2, 3]},
        {"path": "snapshots.bytesPerHost", "before": 30408704, "after": 45088768},
        {"path": "saveBytesPerHost", "before": 30408704, "after": 45088768},
        {"path": "firstSaveBytesPerHost", "before": 30408704, "after": 45088768},
    ]
    assert [size["slices"] for size in found["sizes"]] == [1, 2, 3]
    assert {"path": "layout.rowsPerShard", "before": 2, "after": 3} in found["sizes"][0]["changes"]
    assert all(change["before"] is None for change in found["sizes"][2]["changes"])


def test_the_same_job_under_another_name_has_no_differences(diff: Callable[..., SimpleNamespace]) -> None:
    result = diff({"name: demo": "name: other"})

    assert (result.code, result.out) == (0, "The two jobs are the same.\n")
    assert json.loads(diff({"name: demo": "name: other"}, "--json").out) == {
        "spec": [],
        "plan": [],
        "sizes": [],
        "warnings": [],
    }


def test_a_default_that_is_written_out_is_no_difference(diff: Callable[..., SimpleNamespace]) -> None:
    assert diff({"warmup: 15": "warmup: 15\n    finalFraction: 0.1"}).code == 0


def test_live_change_without_consequences_is_listed_alone(diff: Callable[..., SimpleNamespace]) -> None:
    lines = diff({"growCooldown: 5s": "growCooldown: 9s"}).out.splitlines()

    assert lines == [
        "spec                       before  after  while it runs",
        "spec.elastic.growCooldown  5s      9s     may change",
    ]


def test_a_warning_that_is_new_and_one_that_is_gone(diff: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    found = json.loads(diff({"compute: float32": "compute: bfloat16"}, "--json").out)

    (warning,) = found["warnings"]
    assert (warning["path"], warning["before"]) == ("spec.precision.compute", None)
    back = CliRunner().invoke(app, ["plan", str(tmp_path / "other.yaml"), "--diff", str(DEMO), "--json"])
    assert json.loads(back.stdout)["warnings"][0]["after"] is None


def test_a_job_with_problems_is_answered_with_them(diff: Callable[..., SimpleNamespace]) -> None:
    result = diff({"numKvHeads: 2": "numKvHeads: 3"})

    assert (result.code, result.out) == (1, "")
    assert 'TrainingJob "demo" has 1 problem' in result.err
