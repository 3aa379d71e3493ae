"""`simulate`: a job under faults, and what would help it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.main import app
from trainingjob_operator.cli.simulate import parse_span

ROOT = Path(__file__).parents[2]
TPU = str(ROOT / "crds/examples/tpu-v5p-4-slices.yaml")
CPU = str(ROOT / "crds/examples/demo.yaml")
SHORT = ("--time", "4h", "--step-seconds", "5")


def call(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", *args], catch_exceptions=False)
    return result.exit_code, result.stdout or result.stderr


def test_the_same_faults_strike_every_variant() -> None:
    code, text = call(TPU, *SHORT, "--mtbf", "2h", "--json")
    told = json.loads(text[text.index("{") :])
    written, *variants = told["variants"]

    assert code == 0
    assert told["faults"] > 3
    assert written["restarts"] > 0
    assert {one["change"].split(":")[0].lstrip("12 ") for one in variants} == {
        "checkpoint.save.everySteps",
        "checkpoint.snapshots",
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


def test_where_nothing_fails_nothing_helps() -> None:
    code, text = call(TPU, *SHORT, "--mtbf", "3000d")

    assert code == 0
    assert text.splitlines()[-1] == "Nothing of this is clearly better than what is written."


def test_a_roofline_gives_the_seconds_of_a_step() -> None:
    code, text = call(TPU, "--time", "1h")

    assert code == 0
    assert "a step takes" in text


REFUSALS = {
    "no rates": ((CPU,), "give --step-seconds"),
    "no span": ((CPU, "--step-seconds", "1", "--mtbf", "soon"), "--mtbf: 'soon' is no span of time"),
    "no time": ((CPU, "--step-seconds", "1", "--time", "0s"), "--time: '0s' is no span of time"),
}


@pytest.mark.parametrize(("args", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_simulated(args: tuple[str, ...], words: str) -> None:
    code, text = call(*args)

    assert code == 2
    assert words in text


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), ("1d6h", 108_000), ("90s", 90), ("1h30m", 5_400)])
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text, "--time") == seconds


@pytest.mark.parametrize("text", ["", "d", "5", "-1h", "1h1d"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(UsageError):
        parse_span(text, "--time")


def test_the_job_may_have_other_slices_than_the_file_says() -> None:
    code, text = call(TPU, *SHORT, "--slices", "8")

    assert code == 0
    assert "· 8 slices," in text


def test_a_number_of_slices_that_the_job_cannot_have_is_refused_as_in_a_file() -> None:
    code, text = call(TPU, *SHORT, "--slices", "1")

    assert code == 1
    assert "spec.slices" in text


def test_a_job_that_would_fail_says_when_and_why() -> None:
    code, text = call(TPU, "--time", "60d", "--step-seconds", "5", "--mtbf", "12h")

    assert code == 0
    assert "As written the job fails after" in text
    assert "maxRestarts" in text
