"""Traces and stacks of a real job on processes of this machine: from the annotation to files and logs of all hosts."""

from pathlib import Path
from random import Random

import pytest

from e2e.soak.harness import JobHarness
from tests.e2e.test_drills import make_job
from trainingjob_api.inspection import INSPECTION_ANNOTATION, InspectionKind, InspectionRequest
from trainingjob_operator.core.times import format_time

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 120.0


async def test_a_trace_of_all_hosts_interrupts_no_world(tmp_path: Path) -> None:
    harness = JobHarness(make_job(), tmp_path / "job", tmp_path / "cache", Random(1), 1.0, print)  # noqa: S311
    (tmp_path / "cache").mkdir()
    async with harness.running():
        await harness.wait_for(
            "a world of both slices", lambda: harness.status.display.slices == "2/2", TIMEOUT_SECONDS
        )
        await harness.wait_for("a saved step", lambda: harness.checker.committed > 0, TIMEOUT_SECONDS)
        generation = harness.status.world.generation if harness.status.world else 0
        metadata = harness.machine.cluster.job["metadata"]
        request = InspectionRequest(
            id="one", job_uid=metadata["uid"], kind=InspectionKind.TRACE, steps=4, hosts="all",
            requested=format_time(harness.now()),
        )  # fmt: skip
        harness.machine.cluster.annotate(**{INSPECTION_ANNOTATION: request.model_dump_json(by_alias=True)})
        harness.wake()
        await harness.wait_for("two traces", lambda: len(list_traces(tmp_path)) >= 2, TIMEOUT_SECONDS)

        assert harness.status.world
        assert harness.status.world.generation == generation
    names = [path.relative_to(path.parents[3]).as_posix() for path in list_traces(tmp_path)]
    assert names == [f"plugins/profile/request-one/slice-{number}-host-0.xplane.pb" for number in (0, 1)]


def list_traces(folder: Path) -> list[Path]:
    return sorted(folder.rglob("profiles/plugins/profile/*/*.xplane.pb"))
