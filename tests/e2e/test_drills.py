"""Drills of a real job on processes of this machine: agents make the faults, the operator measures the cost."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from e2e.soak.harness import JobHarness
from e2e.soak.job import make_spec
from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_operator.core.times import format_time

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 120.0
SAVE_EVERY = 100
PROGRESS_TIMEOUT = "10s"
"""Longer than the trainer is paused while a checkpoint is damaged, on a busy machine too."""
ENDS = {
    DrillKind.HANG: "HungHost",
    DrillKind.CORRUPT_CHECKPOINT: "Killed",
    DrillKind.KILL_SLICE: "PodDeleted",
    DrillKind.PREEMPT: "Resized",
}


def make_job() -> dict[str, Any]:
    spec = make_spec()
    return spec | {
        "training": {**spec["training"], "steps": 10_000_000},
        "checkpoint": {**spec["checkpoint"], "save": {"everySteps": SAVE_EVERY}},
        "elastic": {**spec["elastic"], "progressTimeout": PROGRESS_TIMEOUT, "faultInjection": "allowed"},
    }


async def drill(harness: JobHarness, kind: DrillKind, number: int) -> DrillStatus:
    """Request a drill once the job trains on both slices, and return its outcome."""
    await harness.wait_for("a world of both slices", lambda: harness.status.display.slices == "2/2", TIMEOUT_SECONDS)
    metadata = harness.machine.cluster.job["metadata"]
    request = DrillRequest(
        id=f"drill-{number}", job_uid=metadata["uid"], kind=kind, seconds=3, requested=format_time(harness.now())
    )
    harness.machine.cluster.annotate(**{DRILL_ANNOTATION: request.model_dump_json(by_alias=True)})
    harness.wake()
    await harness.wait_for(
        f"the end of drill {kind}",
        lambda: (
            len(harness.status.drills) > number and harness.status.drills[number].state not in ("ordered", "injected")
        ),
        TIMEOUT_SECONDS,
    )
    return harness.status.drills[number]


async def test_each_drill_is_injected_and_measured(tmp_path: Path) -> None:
    damaged: list[str] = []
    harness = JobHarness(
        make_job(),
        tmp_path / "job",
        tmp_path / "cache",
        Random(1),  # noqa: S311
        1.0,
        lambda line: damaged.append(line) if line.startswith("CheckpointDamaged") else None,
    )
    (tmp_path / "cache").mkdir()
    async with harness.running():
        await harness.wait_for("two saved steps", lambda: harness.checker.committed > SAVE_EVERY, TIMEOUT_SECONDS)

        found = [await drill(harness, kind, number) for number, kind in enumerate(ENDS)]
        poisoned = await drill(harness, DrillKind.NAN, len(ENDS))
        withstood = await drill(harness, DrillKind.PARTITION, len(ENDS) + 1)

    assert {drill.kind: drill.cause for drill in found} == ENDS, found
    assert all(one.state == "recovered" and one.recovery_seconds for one in found)
    assert found[0].slice == 1
    assert "its process is stopped" in found[0].message
    assert len(damaged) == 1
    assert poisoned.state == withstood.state == "withstood"
    assert poisoned.message.endswith("1 update skipped so far")
    assert harness.status.restarts.counted == 0
    assert harness.checker.problems == []
