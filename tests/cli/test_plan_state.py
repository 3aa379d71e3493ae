"""`trainingjob plan`: where the state of a job is."""

import json
from pathlib import Path

import yaml

from tests.cli.test_offline import call


def test_plan_reports_the_memory_of_the_optimizer_state() -> None:
    on_host, on_cpu = (
        yaml.safe_load(Path(f"crds/examples/{name}.yaml").read_text()) for name in ("tpu-v5p-4-slices", "demo")
    )

    assert "optimizer state: " not in call("plan", "-", given=yaml.safe_dump(on_cpu)).out
    for written in (on_host, on_cpu):
        written["spec"]["memory"] = {"offload": ["optimizer"]}
    on_host["spec"]["runtime"]["resources"] = {"memory": "32Gi"}
    line = "optimizer state: in the memory of the host, because `memory.offload` names it: up to 4.01 GB per host, and "
    assert line in call("plan", "-", given=yaml.safe_dump(on_host)).out
    words = (
        "optimizer state: in the memory of the device, because devices of cpu have no memory beside that of the host"
    )
    assert words in call("plan", "-", given=yaml.safe_dump(on_cpu)).out.splitlines()


def test_plan_names_the_matrices_that_no_axis_shards() -> None:
    written = yaml.safe_load(Path("crds/examples/demo.yaml").read_text())

    assert "whole on every device" not in call("plan", "-", given=yaml.safe_dump(written)).out
    written["spec"]["parallelism"]["rules"] = {"vocab": [], "embed": []}
    lines = call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()
    (line,) = [one for one in lines if one.startswith("whole on every device: ") and "embedding" in one]
    assert "because no rule shards `vocab` and `embed` over an axis of this mesh" in line
    unsharded = json.loads(call("plan", "--json", "-", given=yaml.safe_dump(written)).out)["unsharded"]
    (table,) = [one for one in unsharded["tensors"] if one["name"] == "embedding"]
    assert table["isMatrix"]
    assert table["reason"] == "no rule shards `vocab` and `embed` over an axis of this mesh"
    assert unsharded["numParameters"] == sum(one["numParameters"] for one in unsharded["tensors"])
    assert unsharded["share"] == 1


def test_plan_reports_what_auto_moves_to_the_host() -> None:
    written = yaml.safe_load(Path("crds/examples/tpu-v5p-4-slices.yaml").read_text())
    written["spec"]["parallelism"] = {"strategy": "auto"}
    written["spec"]["slices"] = {"accelerator": "tpu-v5e", "topology": "2x4", "count": 1}
    written["spec"]["training"] |= {"globalBatchSize": 8, "sequenceLength": 1024}
    written["spec"]["runtime"]["resources"] = {"memory": "100Gi"}
    lines = call("plan", "-", given=yaml.safe_dump(written)).out.splitlines()

    (line,) = [one for one in lines if one.startswith("optimizer state: ")]
    assert line.startswith("optimizer state: in the memory of the host, because `strategy: auto` found no mesh whose")
    assert "  memory: {remat: full, offload: [optimizer]}" in lines
    (best,) = [one for one in lines if one.startswith("auto, the best of ")]
    assert " · remat full · offload optimizer · " in best
