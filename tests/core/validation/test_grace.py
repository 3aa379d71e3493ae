"""Warnings about grace periods that do not have the effect that they seem to have."""

from typing import Any

import pytest

from tests.corpus.cases import judge, load_example, set_at

SPOT = {"spec.scheduling.nodeSelector": {"cloud.google.com/gke-spot": "true"}}
LARGE = {
    "spec.slices.topology": "2x2x1",
    "spec.parallelism.ici": {"fsdp": -1},
    "spec.model.mlpDim": 28672,
    "spec.model.numLayers": 36,
    "spec.checkpoint.snapshots": None,
}
"""Llama 3 8B with more layers, all of it on one host: its state goes through the network in 7 s."""
JOBS: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "no spot machine": ("fixed", {}, "30s", False),
    "a spot machine": ("fixed", SPOT, "16s", True),
    "as long as a spot machine gives": ("fixed", SPOT, "15s", False),
    "a save through the network, with 5 s less": ("tpu-v5p-4-slices", LARGE, "11s", True),
    "with enough": ("tpu-v5p-4-slices", LARGE, "13s", False),
    "a network of which nothing is known": ("elastic", {}, "10s", False),
}


@pytest.mark.parametrize(("base", "patch", "grace", "warned"), JOBS.values(), ids=JOBS.keys())
def test_a_grace_period_is_warned_of(base: str, patch: dict[str, Any], grace: str, warned: bool) -> None:
    job = load_example(base)
    for path, value in {**patch, "spec.runtime.terminationGracePeriod": grace}.items():
        set_at(job, path, value)

    checked = judge(job)

    assert checked.problems == ()
    assert [one.path for one in checked.warnings if "Grace" in one.path] == (
        ["spec.runtime.terminationGracePeriod"] if warned else []
    )
