"""`simulate`: a job under faults, and what would help it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import CliRunner
from trainingjob_operator.cli import simulate
from trainingjob_operator.cli.entry_point import app
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.simulate import parse_span

ROOT = Path(__file__).parents[2]
TPU = str(ROOT / "crds/examples/tpu-v5p-4-slices.yaml")
CPU = str(ROOT / "crds/examples/demo.yaml")
SHORT = ("--time", "2h", "--step-seconds", "5")


@pytest.fixture(autouse=True)
def few_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "all_runs" not in request.fixturenames:
        monkeypatch.setattr(simulate, "MAX_RUNS", 4)


@pytest.fixture
def all_runs() -> None:
    """Simulate as many runs as users have."""


def call(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", *args], catch_exceptions=False)
    return result.exit_code, result.stdout or result.stderr


@pytest.mark.thorough
def test_the_same_faults_strike_every_variant() -> None:
    code, text = call(TPU, *SHORT, "--mtbf", "2h", "--json")
    reported = json.loads(text[text.index("{") :])
    written, *variants = reported["variants"]

    assert code == 0
    assert reported["faults"] > 3
    assert written["restarts"] > 0
    assert {one["change"].split(":")[0].lstrip("12 ") for one in variants} == {
        "checkpoint.save.everySteps",
        "checkpoint.snapshots",
        "elastic.maxRestarts",
        "slices.min",
        "spare slice",
        "spare slices",
    }
    assert 0 < written["throughput"] < 1
    assert next(one for one in variants if one["change"] == "1 spare slice")["throughput"] > written["throughput"]


def test_the_table_ends_with_advice() -> None:
    code, text = call(TPU, *SHORT, "--mtbf", "2h", "--save-seconds", "1000")

    assert code == 0
    assert "as written" in text
    assert "alone:" in text.splitlines()[-1]


def test_simulation_without_faults_has_no_advice() -> None:
    code, text = call(TPU, *SHORT, "--mtbf", "3000d")

    assert code == 0
    assert text.splitlines()[-1] == "No change is clearly better than the spec as written."


def test_a_roofline_gives_the_seconds_of_a_step() -> None:
    code, text = call(TPU, "--time", "1h")

    assert code == 0
    assert "step time" in text


REFUSALS = {
    "no rates": ((CPU,), "set --step-seconds"),
    "no span": ((CPU, "--step-seconds", "1", "--mtbf", "soon"), "--mtbf: 'soon' must be a time span"),
    "a span of centuries": (
        (CPU, "--step-seconds", "1", "--repair", "36501d"),
        "--repair: '36501d' must be at most 36500d",
    ),
    "no time": ((CPU, "--step-seconds", "1", "--time", "0s"), "--time: '0s' must be a time span"),
}


@pytest.mark.parametrize(("args", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_jobs_that_cannot_be_simulated(args: tuple[str, ...], words: str) -> None:
    code, text = call(*args)

    assert code == 2
    assert words in text


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), ("1d6h", 108_000), ("90s", 90), ("1h30m", 5_400)])
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text, "--time") == seconds


@pytest.mark.parametrize("text", ["", "d", "5", "-1h", "1h1d"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(UsageError):
        parse_span(text, "--time")


def test_number_of_slices_overrides_the_file() -> None:
    code, text = call(TPU, *SHORT, "--slices", "8")

    assert code == 0
    assert "· 8 slices ·" in text


def test_illegal_number_of_slices_is_rejected_as_in_a_file() -> None:
    code, text = call(TPU, *SHORT, "--slices", "1")

    assert code == 1
    assert "spec.slices" in text


@pytest.mark.thorough
@pytest.mark.usefixtures("all_runs")
def test_simulated_failure_reports_time_reason_and_advice(tmp_path: Path) -> None:
    code, text = call(
        resize(tmp_path, 400, maxRestarts=0, maxRestartsWithoutCommit=100),
        "--step-seconds",
        "5",
        "--mtbf",
        "1h",
        "--repair",
        "1m",
    )

    assert code == 0
    lines = text.splitlines()
    (failure,) = [line for line in lines if line.startswith("As written the job fails ")]
    assert "maxRestarts" in failure
    assert "trainingjob run" not in text  # no next step of a job that only a simulation ran
    assert any(line.startswith("elastic.maxRestarts: 1000 alone: ") for line in lines)


def resize(folder: Path, steps: int = 2000, **elastic: Any) -> str:
    """Return a file with a job of two slices and some steps."""
    job = yaml.safe_load(Path(TPU).read_text())
    job["spec"]["training"]["steps"] = steps
    job["spec"]["schedule"] = {"warmup": 0}
    job["spec"]["slices"] = {**job["spec"]["slices"], "min": 1, "max": 2}
    job["spec"]["elastic"] = {**job["spec"].get("elastic", {}), **elastic}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def simulate_json(*args: str) -> dict[str, Any]:
    code, text = call(*args, "--json")
    assert code == 0
    reported: dict[str, Any] = json.loads(text[text.index("{") :])
    return reported


@pytest.mark.parametrize("steps", [10, 2000])
def test_a_simulation_ends_with_the_job(steps: int, tmp_path: Path) -> None:
    reported = simulate_json(resize(tmp_path, steps), "--step-seconds", "5", "--mtbf", "3000d", "--save-seconds", "1")

    written = reported["variants"][0]
    assert reported["idealSeconds"] == 5 * steps
    assert (written["runsSucceeded"], written["step"]) == (reported["runs"], steps)
    assert 5 * steps <= written["simulatedSeconds"] / reported["runs"] < 5 * steps * 1.01 + 300


@pytest.mark.thorough
@pytest.mark.usefixtures("all_runs")
def test_a_job_of_few_faults_is_run_several_times(tmp_path: Path) -> None:
    path = resize(tmp_path, 500)
    often = simulate_json(path, "--step-seconds", "5", "--mtbf", "1m", "--repair", "1s", "--time", "10m")
    rarely = simulate_json(path, "--step-seconds", "5", "--mtbf", "300d", "--time", "10m")

    assert often["runs"] < rarely["runs"] == simulate.MAX_RUNS


def test_restarts_are_counted_by_time(tmp_path: Path) -> None:
    options = ("--step-seconds", "5", "--mtbf", "10m", "--repair", "1m")
    written = simulate_json(resize(tmp_path, 120), *options)["variants"][0]

    days = written["simulatedSeconds"] / 86_400
    assert written["restartsIn30Days"] == pytest.approx(written["restarts"] / days * 30, rel=0.01)


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("mtbf", ["30m", "300d"])
def test_advice_is_never_of_no_gain(seed: int, mtbf: str, tmp_path: Path) -> None:
    _, text = call(resize(tmp_path, 300), "--step-seconds", "5", "--mtbf", mtbf, "--repair", "1m", "--seed", str(seed))

    advice = [line for line in text.splitlines() if " alone: " in line and "runs fail" not in line]
    for line in advice:
        better, written = re.findall(r"([0-9.]+) %", line)
        assert float(better) > float(written), line


def test_planned_step_time_is_reported_as_a_lower_bound() -> None:
    assert ", as the plan expects" in call(TPU, "--time", "1h")[1]
    assert "a lower bound" not in call(TPU, *SHORT)[1]


def test_a_job_with_epochs_needs_an_estimate_of_its_steps(tmp_path: Path) -> None:
    job = yaml.safe_load(Path(CPU).read_text())
    job["spec"]["training"] |= {"steps": None, "epochs": 2}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))

    code, text = call(str(path), *SHORT)

    assert code != 0
    assert "write an estimate as `spec.training.steps`" in text
