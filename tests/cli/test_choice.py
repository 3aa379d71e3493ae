"""The part of `plan` about a chosen mesh: its alternatives, and the fields that select the same mesh."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import CliRunner
from trainingjob_operator.cli.entry_point import app

EXAMPLES = Path(__file__).parents[2] / "crds/examples"


def manifest(name: str, **sections: Any) -> str:
    job = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    job["spec"] |= sections
    return json.dumps(job)


def plan(text: str, *options: str) -> str:
    result = CliRunner().invoke(app, ["plan", "-", *options], input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", ["tpu-v5p-4-slices", "demo"])
def test_fields_to_paste_give_the_same_plan(name: str) -> None:
    reported = plan(manifest(name, parallelism={"strategy": "auto"})).splitlines()
    begin = reported.index("The same as an explicit spec:")
    pasted = yaml.safe_load("\n".join(reported[begin + 1 : begin + 3]))
    auto = next(place for place, line in enumerate(reported) if line.startswith("auto, the best of "))

    assert plan(manifest(name, **pasted)).splitlines()[: auto - 1] == reported[: auto - 1]


def test_runners_up_are_listed_with_their_cost() -> None:
    reported = plan(manifest("tpu-v5p-4-slices", parallelism={"strategy": "auto"})).splitlines()
    others = [line for line in reported if line.startswith("  instead of ")]

    assert len(others) == 3
    assert all(line.endswith(" %)") and " per step (+" in line for line in others)


def test_the_number_of_ways_names_the_size_that_it_counts() -> None:
    reported = plan(manifest("tpu-v5p-4-slices", parallelism={"strategy": "auto"}))

    assert re.search(r"auto, the best of \d+ candidates at the largest size: ici", reported)


def test_choice_without_rates_has_no_times() -> None:
    reported = plan(manifest("demo", parallelism={"strategy": "auto"}))

    assert "auto, the best of " in reported
    assert "per step" not in reported


def test_a_job_on_one_device_is_written_out_too() -> None:
    slices = {"accelerator": "cpu", "topology": "1x1", "count": 1}

    assert "parallelism: {ici: {data: 1}, dcn: {data: -1}}" in plan(
        manifest("demo", parallelism={"strategy": "auto"}, slices=slices)
    )


def test_json_has_the_choice() -> None:
    auto, written = (
        json.loads(plan(manifest("demo", parallelism=parallelism), "--json"))["choice"]
        for parallelism in ({"strategy": "auto"}, {})
    )

    assert auto["chosen"]["remat"] == "none"
    assert written is None


def test_batches_that_grow_are_listed() -> None:
    job = yaml.safe_load(manifest("demo"))
    job["spec"]["training"]["batchSchedule"] = [{"fromStep": 20, "globalBatchSize": 64}]

    assert "global batch: 8 sequences, then 64 from step 20; the table has the largest" in plan(json.dumps(job))
