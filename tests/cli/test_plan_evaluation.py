"""What `plan` shows of evaluations, of their samples, and of checkpoints in a bucket."""

import json
from pathlib import Path

import yaml

from tests.cli.test_offline import call
from trainingjob_operator.core.units import format_size


def test_plan_reports_the_batch_and_memory_of_an_evaluation_that_sets_its_batch() -> None:
    written = yaml.safe_load(Path("crds/examples/tpu-v5p-4-slices.yaml").read_text())
    (given,) = written["spec"]["evaluation"]
    written["spec"]["evaluation"] = [given, {**given, "name": "small", "maxPerDeviceBatch": 1}]
    sizes = json.loads(call("plan", "--json", "-", given=yaml.safe_dump(written)).out)["sizes"]
    plans = [size["evaluations"][1] for size in sizes]

    lines = call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()

    size = format_size(max(one["memoryBytes"] for one in plans))
    assert {one["rowsPerShard"] for one in plans} == {1}
    assert [line for line in lines if line.startswith("evaluation ")] == [
        f"evaluation small: a chip evaluates up to 1 sequence at once, with at most {size}"
    ]


def test_plan_reports_the_cache_of_samples() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())
    samples = [{"prompt": "abc", "maxTokens": 12}, {"prompt": "a", "maxTokens": 4}]
    written["spec"]["evaluation"] = [{"name": "held", "path": "/held", "everySteps": 10, "samples": samples}]
    model = written["spec"]["model"]
    size = 2 * 16 * model["numLayers"] * 2 * model["numKvHeads"] * model["headDim"] * 4

    (line,) = (
        line
        for line in call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()
        if line.startswith("samples: ")
    )

    assert line == f"samples: the cache of 2 texts of up to 16 tokens needs {format_size(size)} per device"


def test_plan_names_the_bucket_of_the_checkpoints() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())
    written["spec"]["checkpoint"]["uri"] = "gs://runs/team/demo"
    written["spec"]["runtime"]["volumes"] = []

    lines = call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()

    assert [line for line in lines if line.startswith("checkpoints: ")] == [
        "checkpoints: in gs://runs/team/demo, without a volume; each host copies the tokens to its disk, up to 8Gi"
    ]
