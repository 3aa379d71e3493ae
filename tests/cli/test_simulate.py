"""`simulate`: a job under faults, and what would help it."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.main import app
from trainingjob_operator.cli.simulate import Weather, draw_faults, parse_span

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


def test_slices_fail_as_often_as_asked_and_never_while_they_are_gone() -> None:
    faults = draw_faults(Weather(mtbf=10.0, repair=1.0, length=11_000.0, seed=1), 3)

    assert len(faults) == pytest.approx(3000, rel=0.1)
    for number in range(3):
        own = [fault for fault in faults if fault.slice == number]
        assert all(one.at + one.away <= next_one.at for one, next_one in pairwise(own))
